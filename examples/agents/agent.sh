#!/bin/sh
# Runs agent.py with the packages that it needs. Arguments go to it; --help names them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
PYTHONPATH=$root/clients/python/src exec "$(python)" "$here/agent.py" "$@"
