#!/bin/sh
# Tests of the library that Kotlin and Python call. SEMEL_TEST_LONG and SEMEL_TEST_FAST change nothing here. Arguments go to cargo test.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$here/../../target}
cargo fmt --check
exec cargo test --quiet --locked --features cli,lab "$@"
