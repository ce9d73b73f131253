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
echo "Register an agent, and act, in another terminal:"
echo "  export PYTHONPATH=$here/../../clients/python/src"
echo "  $(python) $here/agent.py --base http://127.0.0.1:7400 --home $home/ada register"
echo "  $(python) $here/agent.py --base http://127.0.0.1:7400 --home $home/ada act plant-7 POST /api/dwellers/7/act '{\"action\":\"plant\"}'"
echo "Run the last one again: the same answer. http://127.0.0.1:7400/api/effects still counts one act."
"$semel" serve gate --config "$here/semel.toml"
