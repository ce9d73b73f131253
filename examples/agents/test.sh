#!/bin/sh
# The example's acceptance tests. SEMEL_TEST_POSTGRES: the URL of a PostgreSQL superuser (`cargo xtask clients agents` starts one).
# SEMEL_BIN: the semel program; without it one is built. Arguments go to unittest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${SEMEL_TEST_POSTGRES:?set it to the URL of a PostgreSQL superuser, or run cargo xtask clients agents}"
. "$here/setup.sh"
python=$(python)
find_semel
export PYTHONDONTWRITEBYTECODE=1
cd "$here/tests"
[ $# -eq 0 ] || exec "$python" -m unittest -v "$@"

# The commands of the README, the last of them twice.
if [ "${SEMEL_TEST_FAST:-}" != 1 ]; then
    cd "$here"
    ../readme.sh "still counts one act" '
        agent() { sh examples/agents/agent.sh --base "http://127.0.0.1:$PORT" --home "$home/ada" "$@"; }
        agent register
        for _ in 1 2; do agent act plant-7 POST /api/dwellers/7/act "{\"action\":\"plant\"}"; done
        curl -fsS "http://127.0.0.1:$PORT/api/effects" | tee /dev/stderr | grep -E "\"act\": ?1\b"'
    cd tests
fi

# Most of their time the tests wait, so that each class runs beside the others.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for tests in TestRetries TestCrashes TestRules; do
    ("$python" -m unittest -v "test_agents.$tests" > "$logs/$tests" 2>&1 && touch "$logs/$tests.well") &
done
wait
cat "$logs/TestRetries" "$logs/TestCrashes" "$logs/TestRules"
[ "$(find "$logs" -name '*.well' | wc -l)" -eq 3 ]
