#!/bin/sh
# Starts the score API with its page, and the stand-in for the external service. Installs what is missing; names Rust when it is.
# SCORES_DATA (by default target/scores) is where everything is kept, PORT (3000) where the page is, EXTERNAL_PORT (3001) where the
# external service is, SCORES_BIN a program that is there already. Other arguments go to the program (--help names them).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/examples/tools.sh"
need_node
sh "$here/web/build.sh"
if [ -z "${SCORES_BIN:-}" ]; then
  need_rust
  (cd "$root" && cargo build -p semel-example-scores)
  SCORES_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/semel-example-scores
fi
home=${SCORES_DATA:-$root/target/scores}
mkdir -p "$home"
cd "$home"
[ -f scores.keys ] || (umask 077 && printf 'one %s\n' "$(head -c 32 /dev/urandom | base64)" > scores.keys)
[ -z "${PORT:-}" ] || set -- --listen "127.0.0.1:$PORT" "$@"
[ -z "${EXTERNAL_PORT:-}" ] || set -- --external "127.0.0.1:$EXTERNAL_PORT" "$@"
echo "Open http://127.0.0.1:${PORT:-3000} and sign in with any name and the password campfire."
exec "$SCORES_BIN" --web "$here/web/dist" "$@"
