#!/bin/sh
# The API's acceptance tests. SEMEL_BIN names the semel program; SEMEL_TEST_LONG=1 kills every process twenty times.
set -eu
cd "$(dirname "$0")"
. ../../setup.sh
npm run --silent build
"$root/clients/packages.sh" '/usr/lib/*/faketime/libfaketime.so.1=libfaketime'
exec node --test --test-concurrency=1 test/*.test.mjs
