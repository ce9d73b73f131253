# Shared by run.sh and test.sh: a Python with the packages, the semel program, and secrets. Sourced; $here is this folder.

root=$(cd "$here/../.." && pwd)

# The interpreter of a virtual environment, made anew when the list of packages changes.
python() {
    venv=${CARGO_TARGET_DIR:-$root/target}/examples/agents
    if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
        python3 -m venv --clear "$venv" >&2
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
        cp "$here/requirements.txt" "$venv/installed.txt"
    fi
    echo "$venv/bin/python"
}

# The semel program: the one that is named, or one built here.
program() {
    if [ -z "${SEMEL_BIN:-}" ]; then
        (cd "$root" && cargo build --quiet -p semel-cli) >&2
        SEMEL_BIN=$root/target/debug/semel
    fi
    echo "$SEMEL_BIN"
}

# The world's secret, and the keys that answers are encrypted under. Both are read by their owner only.
secrets() {
    (
        umask 077
        [ -f "$1/world.secret" ] || head -c 32 /dev/urandom | base64 > "$1/world.secret"
        [ -f "$1/semel.keys" ] || echo "one $(head -c 32 /dev/urandom | base64)" > "$1/semel.keys"
    )
}
