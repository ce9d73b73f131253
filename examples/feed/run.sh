#!/bin/sh
# Runs the feed on this machine: PostgreSQL, the broker, the sweeper and the service. Installs what is missing.
set -eu
cd "$(dirname "$0")"
. ../setup.sh
npm run --silent build
exec node start.mjs
