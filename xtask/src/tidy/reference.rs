//! The reference of the settings says what the code says.

use super::files::Tree;
use super::{Finding, Seen};
use crate::reference::{PAGE, SOURCES, page};

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let read = |source: &str| tree.text(source).ok_or(format!("{source} is gone"));
    let sources: Vec<String> = SOURCES.into_iter().map(read).collect::<Result<_, _>>()?;
    let wanted = page(&sources.concat())?;
    let settings = wanted.lines().filter(|line| line.starts_with("| `")).count();
    let found = tree.text(PAGE).unwrap_or_default();
    let first = wanted.lines().zip(found.lines().chain(std::iter::repeat(""))).position(|(a, b)| a != b);
    let line = first.map_or(found.lines().count(), |place| place + 1);
    let findings = if wanted == found {
        Vec::new()
    } else {
        vec![Finding::new(PAGE, line, "it is not what the code says: run `cargo xtask reference`")]
    };
    Ok(Seen { extent: format!("{settings} settings"), findings })
}
