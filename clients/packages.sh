#!/bin/sh
# Installs the Debian packages that a test needs, where they are missing: packages.sh FILE=PACKAGE..., as in
# `packages.sh mvn=maven /usr/bin/chromium=chromium`. FILE is a program or a path. Scripts that run side by side take turns.
set -eu
PATH=$PATH:/usr/sbin
find_missing() {
  missing=
  for pair; do
    # shellcheck disable=SC2086 # a path may have a pattern
    command -v "${pair%%=*}" >/dev/null || ls ${pair%%=*} >/dev/null 2>&1 || missing="$missing ${pair#*=}"
  done
}
find_missing "$@"
[ -n "$missing" ] || exit 0
exec 9<"$0"
flock 9
find_missing "$@"
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
  echo "Something is missing: install$missing (Debian's names), and start this again." >&2
  exit 1
}
install() {
  # What a killed script has left running ends first.
  # shellcheck disable=SC2086 # a list of packages
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >/dev/null 9<&-
}
install 2>/dev/null || { apt-get update -qq && install; } || {
  echo "packages.sh: install$missing" >&2
  exit 1
}
echo "packages.sh: installed$missing" >&2
