//! The reference of `semel.toml`: made from the doc comments of the types that read the file, so that it cannot speak of a
//! setting that is not there, nor leave one out. `cargo xtask reference` writes it; `cargo xtask tidy` compares.

use semel_testbed::failure::Failure;
use semel_testbed::process;

/// Write the reference of the settings from the code.
///
/// Writes docs/reference/configuration.md from the types that read the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Where the settings are read.
pub(crate) const SOURCES: [&str; 5] = [
    "crates/cli/src/config/file.rs",
    "crates/contract/src/profile/settings.rs",
    "crates/cli/src/serve/outbox/file.rs",
    "crates/cli/src/serve/relay/file.rs",
    "crates/cli/src/serve/broker/file.rs",
];
/// Where they are described.
pub(crate) const PAGE: &str = "docs/reference/configuration.md";

const HEAD: &str = "\
# Settings of `semel.toml`

Made by `cargo xtask reference` from the code that reads the file; do not edit it by hand. `semel check` reads a file,
says what is unsafe in it and shows what every route ends up with. Settings at the top, of `[gate]` and of `[defaults]`
can also be given as variables: `SEMEL_STORE`, `SEMEL_GATE_LISTEN`, `SEMEL_DEFAULTS_RETRY_WINDOW`. Durations are written `25s`, `10m`, `24h`, `7d`; sizes
`64KiB`, `1MiB`. An unknown setting is an error. Where no default is named, the route's profile decides: see the table in
[the contract](../../spec/contract.md).
";

/// A table of the file, and its settings.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    title: String,
    settings: Vec<(String, String)>,
}

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    let root = process::repository();
    let read = |file: &str| {
        std::fs::read_to_string(root.join(file)).map_err(|error| format!("failed to read {file}: {error}"))
    };
    let page = page(&SOURCES.map(read).into_iter().collect::<Result<Vec<_>, _>>()?.concat())?;
    let path = root.join(PAGE);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| error.to_string())?;
    std::fs::write(&path, page).map_err(|error| format!("failed to write {PAGE}: {error}"))?;
    println!("{PAGE} is written");
    Ok(())
}

/// The page that belongs to these sources, one after the other.
pub(crate) fn page(source: &str) -> Result<String, String> {
    let mut text = HEAD.to_owned();
    for Section { title, settings } in sections(source)? {
        text.push_str(&format!("\n## {title}\n\n| setting | what it says |\n| --- | --- |\n"));
        for (name, about) in settings {
            text.push_str(&format!("| `{name}` | {} |\n", about.replace('|', "\\|")));
        }
    }
    Ok(text)
}

/// Reads the types that are deserialised: each has a title, and each of its fields a sentence.
fn sections(source: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    let (mut docs, mut renamed, mut inside, mut is_skipped) = (Vec::new(), None, false, false);
    for (number, line) in (1..).zip(source.lines()) {
        let word = line.trim();
        if let Some(doc) = word.strip_prefix("///") {
            docs.push(doc.trim());
        } else if let Some(name) = word.strip_prefix("#[serde(rename = \"") {
            renamed = name.split('"').next();
        } else if word == "#[serde(skip)]" {
            is_skipped = true;
        } else if word.starts_with("#[") {
        } else if !docs.is_empty() && is_table(word, line) {
            sections.push(Section { title: docs.join(" "), settings: Vec::new() });
            (docs, inside) = (Vec::new(), true);
        } else if std::mem::take(&mut is_skipped) {
            docs.clear();
        } else if let (true, Some(name)) = (inside, field(word)) {
            if docs.is_empty() {
                return Err(format!("line {number} of the sources: the setting `{name}` is not described"));
            }
            let section = sections.last_mut().expect("a field lies inside of a table");
            section.settings.push((renamed.take().unwrap_or(name).to_owned(), docs.join(" ")));
            docs.clear();
        } else {
            docs.clear();
            inside = inside && word != "}";
        }
    }
    // Types that are not tables of the file have no fields that this could describe.
    sections.retain(|section| !section.settings.is_empty());
    Ok(sections)
}

/// Whether a table of settings begins here: a plain struct, or one of the layered ones.
fn is_table(word: &str, line: &str) -> bool {
    let layered = line.starts_with("    ") && word.ends_with(" {") && word.split(' ').count() == 2;
    let layered = layered && word.starts_with(|first: char| first.is_ascii_uppercase());
    layered
        || (["pub(crate) struct ", "pub struct "].iter().any(|start| word.starts_with(start))
            && word.ends_with('{'))
}

/// The name of a field: `name: Type,`.
fn field(word: &str) -> Option<&str> {
    let (name, _) = word
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ")
        .trim_start_matches("pub ")
        .split_once(": ")?;
    let is_name =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    (is_name && word.ends_with(',')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
/// `[gate]`
#[derive(Debug)]
pub(crate) struct Gate {
    /// Where it listens,
    /// always.
    pub(crate) listen: Text<A>,
}

layered! {
    /// A route
    Settings {
        /// `a|b`.
        #[serde(rename = \"match\")]
        matches: Text<B>,
    }
}

/// Not a table.
pub(crate) struct Word;
";

    #[test]
    fn tables_and_their_settings_are_read() {
        let row = |name: &str, about: &str| (name.to_owned(), about.to_owned());
        assert_eq!(
            sections(SOURCE).unwrap(),
            [
                Section {
                    title: "`[gate]`".to_owned(),
                    settings: vec![row("listen", "Where it listens, always.")]
                },
                Section { title: "A route".to_owned(), settings: vec![row("match", "`a|b`.")] },
            ]
        );
        assert!(page(SOURCE).unwrap().contains("| `match` | `a\\|b`. |"));
    }

    #[test]
    fn a_setting_without_a_sentence_is_found() {
        let source = "/// T\npub(crate) struct T {\n    pub(crate) x: Text<A>,\n}\n";
        assert!(sections(source).unwrap_err().contains("`x` is not described"));
    }
}
