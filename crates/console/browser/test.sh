#!/bin/sh
# Tests the console in Chromium and Firefox from Debian's packages. SEMEL_BIN names the `semel` program; SEMEL_SCREENSHOTS the
# folder in which pictures of the pages are kept.
set -eu
cd "$(dirname "$0")"

[ -d node_modules ] && [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --silent
../../../clients/packages.sh /usr/bin/chromium=chromium /usr/bin/firefox-esr=firefox-esr
npm test --silent
