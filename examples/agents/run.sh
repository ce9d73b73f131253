#!/bin/sh
# Starts the world and semel in front of it, with everything they need, under target/agents. Needs Python 3.9, Rust and a C
# compiler. SEMEL_BIN names a semel program that is there already. Ctrl-C ends both.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=$here/../../target/agents
mkdir -p "$home" && home=$(cd "$home" && pwd)
. "$here/setup.sh"
semel=$(program)
secrets "$home"
cd "$home"
export PYTHONPATH="$here:$here/../../clients/python/src" WORLD_SECRET="$home/world.secret" WORLD_FILE="$home/world.db"
"$(python)" -m uvicorn world:app --port 3000 --log-level warning &
world=$!
trap 'kill $world 2>/dev/null || true' EXIT INT TERM
for _ in $(seq 100); do
    curl -s -o /dev/null http://127.0.0.1:3000/api/effects && break
    sleep 0.1
done
echo "In another terminal, register an agent, and act:"
echo "  sh $here/agent.sh --home $home/ada register"
echo "  sh $here/agent.sh --home $home/ada act plant-7 POST /api/dwellers/7/act '{\"action\":\"plant\"}'"
echo "Run the last one again: the same answer. http://127.0.0.1:7400/api/effects still counts one act."
unset SEMEL_BIN
"$semel" serve gate --config "$here/semel.toml"
