# What an application in Node needs: sourced by its run.sh and test.sh, in its folder. Node, the semel program, semel's library for
# TypeScript and the application's own packages; each only where it is missing.
root=$(cd ../.. && pwd)
while [ ! -d "$root/clients/typescript" ]; do root=$(dirname "$root"); done
. "$root/examples/tools.sh"
need_node
find_semel
# Scripts that run side by side take turns. A killed one leaves no `.package-lock.json`, and the next installs again.
install_packages() (
  exec 9<"$1/package-lock.json"
  flock 9
  [ -d "$1/node_modules" ] && [ "$1/node_modules/.package-lock.json" -nt "$1/package-lock.json" ] ||
    npm ci --prefix "$1" --no-audit --no-fund --silent
)
"$root/clients/typescript/build.sh"
install_packages .
