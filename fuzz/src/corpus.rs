//! The kept inputs, one file each, and those that were found to fail. Owns where they are.

use std::fs;
use std::path::{Path, PathBuf};

/// Inputs that a target keeps at most.
const KEPT_MAX: usize = 120;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Every kept input of a target, in the order of their names.
pub(crate) fn read(target: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder(target)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Adds an input, unless there are enough.
pub(crate) fn keep(target: &str, input: &[u8]) {
    let folder = folder(target);
    let there = fs::read_dir(&folder).map_or(0, Iterator::count);
    if there < KEPT_MAX && fs::create_dir_all(&folder).is_ok() {
        write(&folder.join(name(input)), input);
    }
}

/// Writes an input that failed where a person finds it, and says where.
pub(crate) fn write_found(target: &str, input: &[u8]) -> String {
    let built = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let folder =
        built.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")).join("fuzz");
    let folder = fs::create_dir_all(&folder).and_then(|()| folder.canonicalize()).unwrap_or(folder);
    let path = folder.join(format!("{target}-{}", name(input)));
    write(&path, input);
    path.display().to_string()
}

fn write(path: &Path, input: &[u8]) {
    if let Err(error) = fs::write(path, input) {
        eprintln!("fuzz: cannot write {}: {error}", path.display());
    }
}

/// A name by the content (FNV-1a), so that one input has one file.
fn name(input: &[u8]) -> String {
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
