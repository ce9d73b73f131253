#!/bin/sh
# Tests the TypeScript client: unit tests in Node, then Chromium, Firefox and WebKit from Debian's packages.
# SEMEL_BIN names the `semel` program: keys are then honoured by a real gate. SEMEL_TEST_FAST=1 leaves the browsers out,
# SEMEL_TEST_LONG=1 runs the long forms (every step of a sender, 1,000 and 200 random kills).
set -eu
cd "$(dirname "$0")"

[ -d node_modules ] && [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --silent
npm test --silent
# The server's half needs PostgreSQL: SEMEL_TEST_POSTGRES is the URL of a superuser.
[ -z "${SEMEL_TEST_POSTGRES:-}" ] || npm run --silent test:server
[ "${SEMEL_TEST_FAST:-}" = 1 ] && exit 0

missing=""
[ -x /usr/bin/chromium ] || missing="$missing chromium"
[ -x /usr/bin/firefox-esr ] || missing="$missing firefox-esr"
[ -x /usr/bin/WebKitWebDriver ] || missing="$missing webkit2gtk-driver"
[ -x /usr/bin/Xvfb ] || missing="$missing xvfb"
if [ -n "$missing" ]; then
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi
npm run --silent test:browsers
