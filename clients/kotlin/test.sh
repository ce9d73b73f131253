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
python3 "$here/../reference.py" kotlin --check --generated "$work/generated/dev/semel/semel_core.kt"
cd "$here"
# Everything that is built lies beside what Cargo builds; nothing of it is part of the tree.
build() {
    SEMEL_TREE=$here/../.. mvn --batch-mode --quiet --no-transfer-progress "$@"
}
build -Dwork="$work" "${@:-verify}"
[ "${SEMEL_TEST_LONG:-}" = 1 ] || exit 0
# The form that is published, without the laboratory of the tests, is built once, and the example of the README is run by its jar.
export SEMEL_CORE_PROFILE=release
rm -rf "$work/release"
mkdir -p "$work/release/native/linux-x86-64"
"$here/../core/build.sh" kotlin "$work/release/generated"
mv "$work/release/generated/libsemel_core.so" "$work/release/native/linux-x86-64/"
build -Dwork="$work/release" -Dsemel.tests.skip=true package
build -Dwork="$work" -Dsemel.jar="$work/release/target/semel-0.1.0.jar" -Dtest=JarTest surefire:test
