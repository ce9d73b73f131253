#!/bin/sh
# The tests of both halves: the API, and the app where it is there.
set -eu
cd "$(dirname "$0")"
for half in api app; do
  [ ! -x "$half/test.sh" ] || "$half/test.sh"
done
