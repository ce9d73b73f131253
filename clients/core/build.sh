#!/bin/sh
# Builds the library and writes one language's side of it: build.sh kotlin|python FOLDER [--lab]. The library is put there
# without its debugging symbols. SEMEL_CORE_PROFILE: `dev` (as it is without), or `release` for what is published. `--lab` adds the
# laboratory of the tests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
language=$1 out=$2 features=
[ "${3:-}" != --lab ] || features=lab
profile=${SEMEL_CORE_PROFILE:-dev}
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target" "$out"
target=$(cd "$target" && pwd)
out=$(cd "$out" && pwd)
cd "$here"
# Python's wheel is built from the same folder, and puts a library of its own there.
exec 9<build.sh
flock 9
export CARGO_TARGET_DIR="$target"
if [ "$profile,$features" = dev,lab ]; then
    cargo build --quiet --locked --features cli,lab
else
    # The generator runs here and is shipped to nobody.
    cargo build --quiet --locked --features cli,lab --bin uniffi-bindgen
    cargo build --quiet --locked --profile "$profile" --features "$features" --lib
fi
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
"$target/debug/uniffi-bindgen" generate --library "$built/libsemel_core.so" --language "$language" --no-format --out-dir "$out"
strip -o "$out/libsemel_core.so" "$built/libsemel_core.so"
