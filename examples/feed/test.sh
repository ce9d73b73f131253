#!/bin/sh
# The feed's acceptance tests. SEMEL_BIN names the semel program; SEMEL_TEST_FAST=1 leaves the browser out, SEMEL_TEST_LONG=1 kills every
# process ten times, and SEMEL_TEST_SHOTS=FOLDER keeps pictures of the page.
set -eu
cd "$(dirname "$0")"
. ../setup.sh
npm run --silent build
[ "${SEMEL_TEST_FAST:-}" = 1 ] && exec node --test test/api.test.mjs
"$root/clients/packages.sh" /usr/bin/chromium=chromium
# Each file has processes, ports and a database server of its own.
exec node --test --test-concurrency=2 test/*.test.mjs
