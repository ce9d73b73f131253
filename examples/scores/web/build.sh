#!/bin/sh
# Builds the page into web/dist with the TypeScript client of this tree. Needs Node 20 and npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
client=$here/../../../clients/typescript
"$client/build.sh"
cd "$here"
for entry in outbox snapshot worker; do
  set -- "$@" "--alias:semel/$entry=$client/dist/$entry/index.js"
done
set -- --bundle --minify --log-level=warning --outdir=dist "$@"
"$client/node_modules/.bin/esbuild" app.js --format=esm "$@"
"$client/node_modules/.bin/esbuild" worker.js --format=iife "$@"
cp index.html style.css dist/
