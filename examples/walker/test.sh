#!/bin/sh
# The tests of both halves: the API, and the app where it is there; then what the README says first.
set -eu
cd "$(dirname "$0")"
for half in api app; do
  [ ! -x "$half/test.sh" ] || "$half/test.sh"
done
[ "${SEMEL_TEST_FAST:-}" = 1 ] || ../readme.sh "phone. Type" 'curl -fsS "http://127.0.0.1:$PORT/session" -H "Content-Type: application/json" -d "{\"name\":\"bob\"}" | grep token'
