//! Keeps results: JSON and a chart for each bench, and their tables inside docs/benchmarks/README.md.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use serde_json::Value;

use super::result::Outcome;
use super::{Bench, chart, install, table};

const README: &str = "README.md";

/// Writes what a bench found into the documents.
pub(crate) fn keep(bench: &Bench, outcome: &Outcome) -> Result<(), Failure> {
    let folder = folder();
    let write = |name: String, text: &str| {
        let file = folder.join(&name);
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    };
    let about = circumstances();
    let mut json = outcome.json(bench.name);
    json["circumstances"] = Value::String(about.clone());
    write(format!("{}.json", bench.name), &format!("{json:#}\n"))?;
    write(format!("{}.svg", bench.name), &chart::svg(bench.about, outcome))?;
    let text = fs::read_to_string(folder.join(README))
        .map_err(|error| format!("cannot read docs/benchmarks/README.md: {error}"))?;
    let section =
        format!("{about}\n\n{}\n\n![{}]({}.svg)", table::markdown(outcome), bench.about, bench.name);
    let text = replaced(&text, bench.name, &section).ok_or_else(|| {
        format!(
            "docs/benchmarks/README.md has no place for `{0}`: <!-- {0} --> and <!-- end {0} -->",
            bench.name
        )
    })?;
    write(README.to_owned(), &text)?;
    Ok(())
}

/// Where results are kept.
pub(crate) fn folder() -> PathBuf {
    process::repository().join("docs/benchmarks")
}

/// The text between the two marks of a bench replaced.
fn replaced(text: &str, name: &str, section: &str) -> Option<String> {
    let (start, end) = (format!("<!-- {name} -->"), format!("<!-- end {name} -->"));
    let (before, rest) = text.split_once(&start)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{start}\n{section}\n{end}{after}"))
}

/// When, of what and where this was measured.
fn circumstances() -> String {
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(args).current_dir(process::repository());
        process::read(&mut command).map_or("?".to_owned(), |text| text.trim().to_owned())
    };
    let date = process::read(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
        .map_or("?".to_owned(), |text| text.trim().to_owned());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim());
    let commit = git(&["rev-parse", "--short", "HEAD"]);
    // A binary that was given is not what the tree would build.
    let what = match std::env::var_os(install::SEMEL_VARIABLE) {
        Some(_) => format!("with a semel that was built before commit `{commit}`"),
        None => format!("at commit `{commit}`"),
    };
    format!("Measured {date} {what}, {cores} cores ({}).", model.unwrap_or("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_place_between_the_marks_changes() {
        let text = "a\n<!-- x -->\nold\n<!-- end x -->\nb\n<!-- y -->\n<!-- end y -->\n";
        let new = replaced(text, "x", "new").unwrap();
        assert_eq!(new, "a\n<!-- x -->\nnew\n<!-- end x -->\nb\n<!-- y -->\n<!-- end y -->\n");
        assert_eq!(replaced(&new, "x", "new").unwrap(), new);
        assert_eq!(replaced(text, "z", "new"), None);
    }

    #[test]
    fn the_page_has_a_place_for_every_bench() {
        let text = fs::read_to_string(folder().join(README)).unwrap();
        for bench in super::super::BENCHES.iter().filter(|bench| bench.name != super::super::FLAME) {
            assert!(replaced(&text, bench.name, "").is_some(), "no place for {}", bench.name);
        }
    }
}
