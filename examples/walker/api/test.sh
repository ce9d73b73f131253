#!/bin/sh
# The API's acceptance tests. SEMEL_BIN names the semel program; SEMEL_TEST_LONG=1 kills every process twenty times.
set -eu
cd "$(dirname "$0")"
. ../../setup.sh
npm run --silent build
faketime=$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null | head -1)
[ -n "$faketime" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libfaketime >&2; }
exec node --test --test-concurrency=1 test/*.test.mjs
