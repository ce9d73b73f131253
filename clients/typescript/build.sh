#!/bin/sh
# Installs what the build needs and builds `dist`, each only where something changed. Scripts that run side by side take turns, and
# a file that is the same is not written again: another script may be reading it.
set -eu
cd "$(dirname "$0")"
exec 9<package-lock.json
flock 9
[ -d node_modules ] && [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --silent
npm run --silent build
