//! Writes the Kotlin and Python sides of the library from the library itself.

fn main() {
    uniffi::uniffi_bindgen_main();
}
