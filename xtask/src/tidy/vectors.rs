//! Every file of test vectors says what it is about, and every vector says where it comes from. What a vector
//! means is for the tests that run it.

use serde_json::Value;

use super::files::Tree;
use super::{Finding, Seen};

const FOLDER: &str = "spec/vectors/";

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let mut count = 0;
    let mut findings = Vec::new();
    let is_vectors = |file: &str| file.strip_prefix(FOLDER).is_some_and(|name| !name.contains('/'));
    for (file, text) in tree.texts(".json").filter(|(file, _)| is_vectors(file)) {
        count += 1;
        findings.extend(judge(file, &text));
    }
    Ok(Seen { extent: format!("{count} files of vectors"), findings })
}

fn judge(file: &str, text: &str) -> Vec<Finding> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return vec![Finding::new(file, error.line().max(1), format!("is not JSON: {error}"))],
    };
    let mut findings = Vec::new();
    let mut find = |what: String| findings.push(Finding::new(file, 1, what));
    if !says(&value, "about") {
        find("needs a top-level string \"about\": say what these vectors show".to_owned());
    }
    match value["vectors"].as_array().map(Vec::as_slice) {
        None => find("needs a top-level array \"vectors\"".to_owned()),
        Some([]) => find("\"vectors\" is empty: add one or remove the file".to_owned()),
        Some(vectors) if !says(&value, "source") => {
            for (index, _) in vectors.iter().enumerate().filter(|(_, vector)| !says(vector, "source")) {
                find(format!(
                    "vectors[{index}] needs a string \"source\" (or the file one for all): say where it comes from"
                ));
            }
        }
        Some(_) => {}
    }
    findings
}

/// Whether the value has a string of this name that is not blank.
fn says(value: &Value, name: &str) -> bool {
    value[name].as_str().is_some_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        judge("spec/vectors/x.json", text).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn vectors_without_about_or_source_are_found() {
        let whats =
            whats(r#"{"about": " ", "vectors": [{"source": "RFC 8941"}, {"in": 1}, {"source": ""}]}"#);
        assert_eq!(whats.len(), 3, "{whats:?}");
        assert!(
            whats[0].contains("about") && whats[1].contains("vectors[1]") && whats[2].contains("vectors[2]")
        );
    }

    #[test]
    fn a_file_without_vectors_is_found() {
        assert!(whats(r#"{"about": "x"}"#)[0].contains("array"));
        assert!(whats(r#"{"about": "x", "vectors": []}"#)[0].contains("empty"));
        assert!(whats(r#"["about"]"#).len() == 2);
        assert!(whats("{")[0].contains("not JSON"));
    }

    #[test]
    fn one_source_may_stand_for_all() {
        assert_eq!(
            whats(r#"{"about": "x", "source": "RFC 8941", "vectors": [{"in": 1}]}"#),
            [] as [String; 0]
        );
    }
}
