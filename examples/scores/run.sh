#!/bin/sh
# Starts the score API with its page, and the stand-in for the external service. Needs Rust, a C compiler, Node 20 and npm.
# Everything that is kept is under target/scores. Other arguments go to the program (--help names them).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
sh "$here/web/build.sh"
mkdir -p target/scores
cd target/scores
[ -f scores.keys ] || (umask 077 && printf 'one %s\n' "$(head -c 32 /dev/urandom | base64)" > scores.keys)
cd ../..
cargo build --quiet -p semel-example-scores
cd target/scores
echo "Open http://127.0.0.1:3000 and sign in with any name and the password campfire."
exec "$here/../../target/debug/semel-example-scores" --web "$here/web/dist" "$@"
