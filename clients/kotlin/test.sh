#!/bin/sh
# Tests of the Kotlin library. Installs Maven and a JDK where it may. SEMEL_TEST_LONG=1: 200 kills instead of ten. SEMEL_TEST_FAST=1:
# three. SEMEL_TEST_KILLS: as many; SEMEL_TEST_SEED: their seed. Arguments go to mvn.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"$here/../packages.sh" mvn=maven javac=default-jdk-headless
target=${CARGO_TARGET_DIR:-$here/../../target}
work=$target/clients/kotlin
rm -rf "$work/generated" "$work/native"
mkdir -p "$work/native/linux-x86-64"
work=$(cd "$work" && pwd)
"$here/../core/build.sh" kotlin "$work/generated" --lab
mv "$work/generated/libsemel_core.so" "$work/native/linux-x86-64/"
cd "$here"
# Everything that is built lies beside what Cargo builds; nothing of it is part of the tree.
SEMEL_TREE=$here/../.. exec mvn --batch-mode --quiet --no-transfer-progress -Dwork="$work" "${@:-verify}"
