# Builds the app and what it uses: sourced by run.sh and test.sh, in this folder. A JDK, Maven, Rust's library and its Kotlin side, each
# only where it is missing. Sets WALKER_APP, the folder with the app. What is built lies beside what Cargo builds. The caller sets the
# goals of Maven (`set --`).
root=$(cd ../../.. && pwd)
. "$root/examples/tools.sh"
need_rust
"$root/clients/packages.sh" mvn=maven javac=default-jdk-headless
# Scripts that run side by side take turns: they share the folder.
exec 8<build.sh
flock 8
built=${CARGO_TARGET_DIR:-$root/target}/examples/walker
rm -rf "$built/generated" "$built/native"
mkdir -p "$built/native/linux-x86-64"
built=$(cd "$built" && pwd)
echo "Building the phone's library and the app. The first time this takes minutes." >&2
"$root/clients/core/build.sh" kotlin "$built/generated"
mv "$built/generated/libsemel_core.so" "$built/native/linux-x86-64/"
mvn --batch-mode --quiet --no-transfer-progress -f all.xml -Dwork="$built" -Dsemel.tests.skip=true "$@"
exec 8<&-
export WALKER_APP="$built/walker"
