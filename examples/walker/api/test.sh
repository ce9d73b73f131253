#!/bin/sh
# The API's acceptance tests. SEMEL_BIN names the semel program; SEMEL_TEST_LONG=1 kills every process twenty times.
set -eu
cd "$(dirname "$0")"
. ../../setup.sh
npm run --silent build
"$root/clients/packages.sh" '/usr/lib/*/faketime/libfaketime.so.1=libfaketime'
# Each file has processes, ports and a database server of its own.
exec node --test --test-concurrency=2 test/*.test.mjs
