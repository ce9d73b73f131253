#!/bin/sh
# The feed's acceptance tests. SEMEL_BIN names the semel program; SEMEL_TEST_FAST=1 leaves the browser out, SEMEL_TEST_LONG=1 kills every
# process ten times, and SEMEL_TEST_SHOTS=FOLDER keeps pictures of the page.
set -eu
cd "$(dirname "$0")"
. ../setup.sh
npm run --silent build
node --test test/api.test.mjs
[ "${SEMEL_TEST_FAST:-}" = 1 ] && exit 0
"$root/clients/packages.sh" /usr/bin/chromium=chromium
node --test test/page.test.mjs
../readme.sh "The feed is at" 'curl -fsS "http://127.0.0.1:$PORT/" && curl -fsS "http://127.0.0.1:$PORT/api/session" -H "Content-Type: application/json" -d "{\"name\":\"anna\"}" | grep token'
