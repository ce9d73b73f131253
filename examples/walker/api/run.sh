#!/bin/sh
# Runs the game's API on this machine: PostgreSQL, the daily sweeper and the service. Installs what is missing.
set -eu
cd "$(dirname "$0")"
. ../../setup.sh
npm run --silent build
exec node start.mjs
