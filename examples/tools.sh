# What applications need of this machine, as functions: sourced with $root, the repository. What is missing is installed from the
# distribution's packages, or named in one line.

# Rust comes from rustup, which asks questions: it is named, and not installed.
need_rust() {
  command -v cargo >/dev/null || {
    echo "Rust is missing: install it as https://rustup.rs says, and start this again." >&2
    exit 1
  }
  "$root/clients/packages.sh" cc=gcc /usr/include/stdlib.h=libc6-dev
}

need_node() {
  "$root/clients/packages.sh" node=nodejs npm=npm
  node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || {
    echo "Node 20 or newer is needed; this is $(node --version). Debian 13 and nodejs.org have it." >&2
    exit 1
  }
}

# Sets SEMEL_BIN: the semel program that is named, that is in the PATH, or that is built here.
find_semel() {
  [ -n "${SEMEL_BIN:-}" ] || SEMEL_BIN=$(command -v semel) || {
    need_rust
    (cd "$root" && cargo build -p semel-cli)
    SEMEL_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/semel
  }
  export SEMEL_BIN
}
