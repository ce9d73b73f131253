#!/bin/sh
# Runs the game: the API with its database, and a phone on this terminal. `./run.sh api` runs the API alone.
set -eu
cd "$(dirname "$0")/api"
[ "${1:-}" != api ] || exec ./run.sh
. ../../setup.sh
npm run --silent build
cd ../app
. ./build.sh package -DskipTests
exec node play.mjs
