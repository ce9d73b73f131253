#!/bin/sh
# Tests this package. SEMEL_TEST_POSTGRES: the URL of a PostgreSQL superuser. SEMEL_BIN: the semel program, for migrations and as
# gateway; without it the migrations of this tree are applied one by one, and the gateway is left out. SEMEL_TEST_LONG=1: the long forms.
# SEMEL_TEST_OTHER: the command of a service in another language (spec/once.md) for the test of two processes.
# Arguments go to pytest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${SEMEL_TEST_POSTGRES:?set it to the URL of a PostgreSQL superuser}"

# Cargo's target folder is not part of the tree; nothing of this is checked in.
venv=${CARGO_TARGET_DIR:-$root/target}/clients/python
# Scripts that run side by side take turns.
exec 9<"$here/requirements-dev.lock"
flock 9
if ! cmp -s "$here/requirements-dev.lock" "$venv/installed.lock"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements-dev.lock"
    cp "$here/requirements-dev.lock" "$venv/installed.lock"
fi
exec 9<&-

if ! "$here/../packages.sh" pgbouncer=pgbouncer; then
    echo "test.sh: pgbouncer is not here and cannot be installed: its tests are left out"
    export SEMEL_TEST_PGBOUNCER=missing
fi

python3 "$here/../reference.py" python --check
cd "$here"
# Most of the time is waiting for processes, so that more workers than cores pay.
PYTHONPATH="$here/src" PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" -m pytest -n "${SEMEL_TEST_WORKERS:-4}" --dist loadfile "$@"
