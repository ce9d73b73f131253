#!/bin/sh
# Tests the console in Chromium and Firefox from Debian's packages. SEMEL_BIN names the `semel` program; SEMEL_SCREENSHOTS the
# folder in which pictures of the pages are kept.
set -eu
cd "$(dirname "$0")"

[ -d node_modules ] && [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --silent
missing=""
[ -x /usr/bin/chromium ] || missing="$missing chromium"
[ -x /usr/bin/firefox-esr ] || missing="$missing firefox-esr"
if [ -n "$missing" ]; then
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi
npm test --silent
