#!/bin/sh
# The tests of the page, in Chromium from Debian's packages, and of the device; those of the API are Rust's (`cargo test -p
# semel-example-scores`). Needs Node 20, npm and Python 3.9. SEMEL_TEST_FAST=1 leaves the browser out. Arguments go to node --test.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
sh "$here/web/build.sh"

# Beside the semel program that the tests use, all examples were built with the same settings.
SCORES_BIN=${SEMEL_BIN:+$(dirname "$SEMEL_BIN")/semel-example-scores}
if [ ! -x "${SCORES_BIN:-}" ]; then
  cargo build --quiet -p semel-example-scores
  SCORES_BIN=${CARGO_TARGET_DIR:-$PWD/target}/debug/semel-example-scores
fi
export SCORES_BIN

home=$(mktemp -d)
port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
api=127.0.0.1:$(port)
external=127.0.0.1:$(port)
(umask 077 && printf 'one %s\n' "$(head -c 32 /dev/urandom | base64)" > "$home/keys")
"$SCORES_BIN" --listen "$api" --external "$external" --store "$home/scores.db" --books "$home/books.json" --keys "$home/keys" > "$home/said" &
server=$!
trap 'kill -9 $server 2>/dev/null || true; rm -rf "$home"' EXIT INT TERM
for _ in $(seq 200); do
  grep -q scores "$home/said" && break
  sleep 0.1
done
SCORES_URL=http://$api SCORES_EXTERNAL=http://$external PYTHONDONTWRITEBYTECODE=1 python3 "$here/tests/test_display.py" -v

[ "${SEMEL_TEST_FAST:-}" = 1 ] && exit 0
clients/packages.sh /usr/bin/chromium=chromium
node --test "$@" "$here/tests/page.test.mjs"
cd "$here"
../readme.sh "scores on" 'curl -fsS "http://127.0.0.1:$PORT/" && curl -fsS "http://127.0.0.1:$PORT/api/login" -H "Content-Type: application/json" -d "{\"leader\":\"anna\",\"password\":\"campfire\"}" | grep session'
