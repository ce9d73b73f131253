#!/bin/sh
# Tests the TypeScript client: unit tests in Node, then Chromium, Firefox and WebKit from Debian's packages.
# SEMEL_BIN names the `semel` program: keys are then honoured by a real gate. SEMEL_TEST_FAST=1 leaves the browsers out,
# SEMEL_TEST_LONG=1 runs the long forms (1,000 and 200 random kills; SEMEL_TEST_KILLS is another number).
set -eu
cd "$(dirname "$0")"

./build.sh
node_modules/.bin/tsc -p tsconfig.test.json
node --test test-build/unit/*.test.js
# The server's half needs PostgreSQL: SEMEL_TEST_POSTGRES is the URL of a superuser.
[ -z "${SEMEL_TEST_POSTGRES:-}" ] || sh test/server/run.sh
[ "${SEMEL_TEST_FAST:-}" = 1 ] && exit 0

../packages.sh /usr/bin/chromium=chromium /usr/bin/firefox-esr=firefox-esr /usr/bin/WebKitWebDriver=webkit2gtk-driver Xvfb=xvfb
node --test --test-concurrency=1 test-build/browsers/*.test.js
