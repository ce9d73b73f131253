#!/bin/sh
# Runs the game's API on this machine.
exec "$(dirname "$0")/api/run.sh"
