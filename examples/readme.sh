#!/bin/sh
# Does what the README of an application says first, as a new user would: readme.sh READY REQUEST, in the application's folder. Runs the
# README's first command in the repository until it prints READY, then REQUEST (which finds PORT), then ends the command. Ports and data are
# its own.
set -eu
ready=$1 request=$2
command=$(sed -n 's/^    //p' README.md | head -n 1)
[ -n "$command" ] || { echo "readme.sh: README.md has no command" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/clients/packages.sh" curl=curl
PORT=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 6000 * 2))
home=$(mktemp -d)
export root home PORT WORLD_PORT=$((PORT + 1)) EXTERNAL_PORT=$((PORT + 1)) SEMEL_GATE_ADMIN=127.0.0.1:0
export AGENTS_DATA="$home" FEED_DATA="$home" SCORES_DATA="$home" WALKER_DATA="$home"
cd "$root"
# A session of its own is ended as a whole. Its input stays open, as a terminal's does.
setsid sh -c "tail -f /dev/null | $command" > "$home/said" 2>&1 &
group=$!
end() {
  kill -s "$1" -- "-$group" 2>/dev/null || true
  for _ in $(seq 100); do
    kill -0 -- "-$group" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}
fail() {
  cat "$home/said" >&2
  echo "readme.sh: \`$command\` $1" >&2
  exit 1
}
trap 'end KILL; rm -rf "$home"' EXIT
for _ in $(seq 6000); do
  grep -q -- "$ready" "$home/said" && break
  kill -0 "$group" 2>/dev/null || fail "ended before it said \"$ready\""
  sleep 0.1
done
grep -q -- "$ready" "$home/said" || fail "did not say \"$ready\" in ten minutes"
for _ in $(seq 50); do
  sh -euc "$request" > "$home/request" 2>&1 && answered=1 && break
  sleep 0.2
done
[ -n "${answered:-}" ] || { cat "$home/request" >&2; fail "did not answer: $request"; }
end TERM || fail "did not end within ten seconds"
echo "readme.sh: \`$command\` does what its README says"
