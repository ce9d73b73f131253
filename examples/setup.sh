# What an application in Node needs: sourced by its run.sh and test.sh, in its folder. Node, the semel program, semel's library for
# TypeScript and the application's own packages; each only where it is missing.
root=$(cd ../.. && pwd)
while [ ! -d "$root/clients/typescript" ]; do root=$(dirname "$root"); done
"$root/clients/packages.sh" node=nodejs npm=npm
node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || {
  echo "Node 20 or newer is needed; this is $(node --version). Debian 13 and nodejs.org have it." >&2
  exit 1
}
if [ -z "${SEMEL_BIN:-}" ]; then
  SEMEL_BIN=$(command -v semel || true)
  [ -n "$SEMEL_BIN" ] || { (cd "$root" && cargo build -p semel-cli) && SEMEL_BIN=$root/target/debug/semel; }
fi
export SEMEL_BIN
# Scripts that run side by side take turns. A killed one leaves no `.package-lock.json`, and the next installs again.
install_packages() (
  exec 9<"$1/package-lock.json"
  flock 9
  [ -d "$1/node_modules" ] && [ "$1/node_modules/.package-lock.json" -nt "$1/package-lock.json" ] ||
    npm ci --prefix "$1" --no-audit --no-fund --silent
)
"$root/clients/typescript/build.sh"
install_packages .
