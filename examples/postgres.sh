#!/bin/sh
# Runs a PostgreSQL of its own: postgres.sh FOLDER PORT. Installs the server where it is missing (Debian, Ubuntu), makes the data on the
# first start, and becomes the server, so that whoever ends this process ends the server. On loopback, without a password.
set -eu
folder=$1 port=$2
find_bin() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1; }
bin=${SEMEL_TEST_POSTGRES_BIN:-$(find_bin)}
if [ -z "$bin" ]; then
  "$(dirname "$0")/../clients/packages.sh" '/usr/lib/postgresql/*/bin/postgres=postgresql'
  bin=$(find_bin)
fi
mkdir -p "$folder/postgres"
as=""
if [ "$(id -u)" = 0 ]; then
  # PostgreSQL refuses to run as root.
  chmod a+x "$folder"
  chown -R postgres "$folder/postgres"
  as="setpriv --reuid=postgres --regid=postgres --init-groups"
fi
cd "$folder/postgres"
[ -f data/PG_VERSION ] || $as "$bin/initdb" -D data -U postgres -A trust -E UTF8 --no-locale >/dev/null
exec $as "$bin/postgres" -D data -p "$port" -h 127.0.0.1 -k "$folder/postgres" -c max_connections=100
