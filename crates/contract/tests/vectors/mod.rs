//! Reads `spec/vectors/*.json` for the tests. Checks nothing by itself.

use serde_json::Value;

/// The file's list of this name; a file without vectors is a failure, not a pass.
pub(crate) fn list(file: &str, name: &str) -> Vec<Value> {
    let path = format!("{}/../../spec/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let list = document[name].as_array().unwrap_or_else(|| panic!("{path} has no list {name}")).clone();
    assert!(!list.is_empty(), "{path}: {name} is empty");
    list
}

/// Runs a check over every vector and reports all that disagree, not only the first.
pub(crate) fn check(file: &str, name: &str, check: impl Fn(&Value) -> Value) {
    let list = list(file, name);
    let wrong: Vec<String> = list
        .iter()
        .filter_map(|vector| {
            let expected =
                vector.get("expect").or_else(|| vector.get("expect_ms")).expect("a vector expects something");
            let found = check(vector);
            (found != *expected).then(|| format!("{}: expected {expected}, found {found}", vector["name"]))
        })
        .collect();
    let (count, total) = (wrong.len(), list.len());
    assert!(wrong.is_empty(), "{count} of {total} vectors of {file} disagree:\n{}", wrong.join("\n"));
}

/// The text of a field.
#[allow(dead_code)]
pub(crate) fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field].as_str().unwrap_or_else(|| panic!("{vector} has no text {field}"))
}
