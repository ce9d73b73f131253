# Shared by run.sh, agent.sh and test.sh: a Python with the packages, and secrets. Sourced; $here is this folder.

root=$(cd "$here/../.." && pwd)
. "$root/examples/tools.sh"

# The interpreter of a virtual environment, made anew when the list of packages changes. Scripts that run side by side take turns.
python() (
    "$root/clients/packages.sh" python3=python3 curl=curl >&2
    python3 -c 'import ensurepip' 2>/dev/null || "$root/clients/packages.sh" '/usr/lib/python3*/ensurepip=python3-venv' >&2
    venv=${CARGO_TARGET_DIR:-$root/target}/examples/agents
    exec 9<"$here/requirements.txt"
    flock 9
    if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
        python3 -m venv --clear "$venv" >&2
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
        cp "$here/requirements.txt" "$venv/installed.txt"
    fi
    echo "$venv/bin/python"
)

# The world's secret, and the keys that answers are encrypted under. Both are read by their owner only.
secrets() {
    (
        umask 077
        [ -f "$1/world.secret" ] || head -c 32 /dev/urandom | base64 > "$1/world.secret"
        [ -f "$1/semel.keys" ] || echo "one $(head -c 32 /dev/urandom | base64)" > "$1/semel.keys"
    )
}
