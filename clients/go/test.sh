#!/bin/sh
# Tests of the Go library. Reads SEMEL_TEST_POSTGRES (a superuser's URL), SEMEL_BIN (the semel program) and
# SEMEL_TEST_LONG=1 (twenty kills at each step instead of three).
set -eu
cd "$(dirname "$0")"
: "${SEMEL_TEST_POSTGRES:?the URL of a PostgreSQL superuser}" "${SEMEL_BIN:?the semel program}"
unformatted=$(gofmt -l *.go internal)
if [ -n "$unformatted" ]; then
    echo "not formatted by gofmt: $unformatted" >&2
    exit 1
fi
PATH=$PATH:/usr/sbin
if ! ../packages.sh pgbouncer=pgbouncer; then
    echo "pgbouncer is not here and cannot be installed: its test is left out" >&2
    export SEMEL_TEST_PGBOUNCER=missing
fi
python3 ../reference.py go --check
go vet . ./internal/...
go test -count=1 -timeout 30m . ./internal/...
