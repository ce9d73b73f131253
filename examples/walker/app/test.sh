#!/bin/sh
# The app's tests: what becomes of each answer (Kotlin), and a player's offline days against the real API, where every process is killed.
# SEMEL_TEST_LONG=1 kills each ten times.
set -eu
cd "$(dirname "$0")"
. ./build.sh verify
cd ../api
. ../../setup.sh
npm run --silent build
cd ../app
exec node --test --test-concurrency=1 test/*.test.mjs
