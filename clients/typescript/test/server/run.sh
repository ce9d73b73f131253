#!/bin/sh
# Tests of semel/server, after a build. Reads SEMEL_TEST_POSTGRES (a superuser's URL), SEMEL_BIN (the semel program) and
# SEMEL_TEST_LONG=1 (twenty kills at each step instead of three). Go and Python are needed for the tests in two
# languages.
set -eu
cd "$(dirname "$0")"
: "${SEMEL_TEST_POSTGRES:?the URL of a PostgreSQL superuser}" "${SEMEL_BIN:?the semel program}"
if ! cmp -s package-lock.json node_modules/.installed-lock.json; then
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
    cp package-lock.json node_modules/.installed-lock.json
fi
# The engine that migrates schemas is a download, and is not needed to generate the client.
PRISMA_SCHEMA_ENGINE_BINARY=/bin/true npx --no-install prisma generate --schema prisma/schema.prisma >/dev/null 2>&1
PATH=$PATH:/usr/sbin
if ! ../../../packages.sh pgbouncer=pgbouncer; then
    echo "pgbouncer is not here and cannot be installed: its test is left out" >&2
    export SEMEL_TEST_PGBOUNCER=missing
fi
../../node_modules/.bin/tsc -p types/tsconfig.json
node --test --test-concurrency=8 once-*.test.mjs crash.test.mjs behaviour.test.mjs guide.test.mjs vectors.test.mjs

# Two hundred requests of one key, half of them sent to a service in Python.
SEMEL_TEST_OTHER="node $PWD/service.mjs" sh ../../../python/test.sh tests/test_processes.py -k two_hundred -q
