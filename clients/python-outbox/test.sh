#!/bin/sh
# Tests of the Python outbox: builds the wheel, installs it, and runs what is in tests/. SEMEL_TEST_LONG=1: 200 kills instead of
# ten. SEMEL_TEST_FAST=1: three. SEMEL_TEST_KILLS: as many; SEMEL_TEST_SEED: their seed. Arguments go to pytest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/clients"
target=$(cd "$target" && pwd)
venv=$target/clients/python-outbox
if ! cmp -s "$here/requirements-dev.lock" "$venv/installed.lock"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements-dev.lock"
    cp "$here/requirements-dev.lock" "$venv/installed.lock"
fi
cd "$here"
PATH=$venv/bin:$PATH
# The laboratory is for the tests; what is published is built without it, and with `--release`.
rm -rf "$venv/wheels"
# Kotlin's library is built from the same folder: scripts that run side by side take turns.
exec 9<../core/build.sh
flock 9
CARGO_TARGET_DIR=$target maturin build --quiet --locked --profile dev --features cli,lab --compatibility linux --out "$venv/wheels"
exec 9<&-
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$venv"/wheels/*.whl
"$venv/bin/python" ../reference.py python-outbox --check --generated "$venv"/lib/python3*/site-packages/semel_outbox/_core/semel_core.py
export SEMEL_TREE=$here/../.. PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" -m pytest "$@"
[ "${SEMEL_TEST_LONG:-}" = 1 ] || exit 0
# The form that is published, without the laboratory of the tests, is built once, and the examples are run by it.
rm -rf "$venv/release"
flock ../core/build.sh env CARGO_TARGET_DIR="$target" maturin build --quiet --release --locked --compatibility linux --out "$venv/release"
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$venv"/release/*.whl
"$venv/bin/python" -c 'from semel_outbox._core import semel_core; assert not hasattr(semel_core, "Lab"), "the laboratory is in it"'
"$venv/bin/python" -m pytest -k example
