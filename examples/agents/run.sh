#!/bin/sh
# Starts the world and semel in front of it, with everything they need. Installs what is missing; names Rust when it is. AGENTS_DATA (by
# default target/agents) is where everything is kept, PORT (7400) where semel listens, WORLD_PORT (3000) where the world does, and
# SEMEL_BIN a semel program that is there already. Ctrl-C ends both.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${AGENTS_DATA:-$here/../../target/agents}
port=${PORT:-7400} world_port=${WORLD_PORT:-3000}
mkdir -p "$home" && home=$(cd "$home" && pwd)
. "$here/setup.sh"
find_semel
semel=$SEMEL_BIN python=$(python)
secrets "$home"
cd "$home"
export PYTHONPATH="$here:$here/../../clients/python/src" WORLD_SECRET="$home/world.secret" WORLD_FILE="$home/world.db"
"$python" -m uvicorn world:app --port "$world_port" --log-level warning &
world=$!
trap 'kill $world 2>/dev/null || true' EXIT INT TERM
until curl -s -o /dev/null "http://127.0.0.1:$world_port/api/effects"; do
    kill -0 $world 2>/dev/null || exit 1
    sleep 0.1
done
at=
[ "$port" = 7400 ] || at=" --base http://127.0.0.1:$port"
echo "In another terminal, register an agent, and act:"
echo "  sh $here/agent.sh --home $home/ada$at register"
echo "  sh $here/agent.sh --home $home/ada$at act plant-7 POST /api/dwellers/7/act '{\"action\":\"plant\"}'"
echo "Run the last one again: the same answer. http://127.0.0.1:$port/api/effects still counts one act."
unset SEMEL_BIN
"$semel" serve gate --config "$here/semel.toml" --upstream "http://127.0.0.1:$world_port" --listen "127.0.0.1:$port"
