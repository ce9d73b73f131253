//! What the five designs ask, row by row, and which tests show it. Owns how `spec/coverage.toml` is read and what
//! `spec/coverage.md` says of it; `cargo xtask coverage` writes the page, `cargo xtask tidy` compares. Judges no test: it
//! refuses rows that are missing, said twice, or that name a test which is not in the tree.

use semel_testbed::failure::Failure;
use semel_testbed::process;
use serde_json::Value;

/// Write the page of requirements and the tests that show them.
///
/// Writes spec/coverage.md from spec/coverage.toml, where each requirement has a row with its tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print how many rows are shown, open and deferred, and write nothing.
    #[arg(long)]
    counts: bool,
}

/// Where the rows are.
pub(crate) const SOURCE: &str = "spec/coverage.toml";
/// Where people read them.
pub(crate) const PAGE: &str = "spec/coverage.md";

/// What was asked, in chapters: how their rows begin, what each is about, and how many rows it has. The designs come first, then
/// what they disagree in, then what is unsafe in each.
const CHAPTERS: [(&str, &str, usize); 11] = [
    ("S0", "A game that is played offline", 167),
    ("S1", "A platform of agents that retry", 39),
    ("S2", "Scores that a slow service keeps", 118),
    ("S3", "A community's feed", 77),
    ("S4", "Messages of a mesh of daemons", 103),
    ("C", "What the designs disagree in", 29),
    ("G0", "What is unsafe in the game's design", 18),
    ("G1", "What is unsafe in the agents' design", 7),
    ("G2", "What is unsafe in the scores' design", 15),
    ("G3", "What is unsafe in the feed's design", 12),
    ("G4", "What is unsafe in the mesh's design", 10),
];

/// How the file calls the rows of the designs, of their disagreements, and of what is unsafe in them.
const TABLES: [&str; 3] = ["row", "conflict", "gap"];

/// How many rows of the designs may be without any test.
const WITHOUT_TESTS_MAX: usize = 40;

/// The ids of a chapter, in their order.
fn ids(chapter: &str, many: usize) -> impl Iterator<Item = String> {
    (1..=many).map(move |at| match chapter.as_bytes()[0] {
        b'S' => format!("{chapter}-{at:02}"),
        b'C' => format!("{chapter}{at}"),
        _ => format!("{chapter}-{at}"),
    })
}

/// Whether a row is one of the designs themselves.
fn is_of_a_design(id: &str) -> bool {
    id.starts_with('S')
}

/// One requirement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: String,
    asks: String,
    /// `path::name` of each test that shows it.
    pub(crate) tests: Vec<String>,
    /// What is missing.
    open: Option<String>,
    /// Why the design itself does not want it now; of a disagreement or a gap, why there is no more than the tests show.
    deferred: Option<String>,
}

/// How a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Shown,
    Open,
    Deferred,
}

impl Row {
    fn standing(&self) -> Standing {
        match (&self.deferred, &self.open) {
            (Some(_), _) => Standing::Deferred,
            (None, Some(_)) => Standing::Open,
            (None, None) => Standing::Shown,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let root = process::repository();
    let text = std::fs::read_to_string(root.join(SOURCE))
        .map_err(|error| format!("failed to read {SOURCE}: {error}"))?;
    let rows = read(&text)?;
    println!("{}", counts(&rows));
    if !args.counts {
        std::fs::write(root.join(PAGE), page(&rows))
            .map_err(|error| format!("failed to write {PAGE}: {error}"))?;
        println!("{PAGE} is written");
    }
    Ok(())
}

/// The rows as they are written down.
pub(crate) fn read(text: &str) -> Result<Vec<Row>, String> {
    let file: Value = toml::from_str(text).map_err(|error| format!("{SOURCE} cannot be read: {error}"))?;
    let mut all = Vec::new();
    for table in TABLES {
        let rows = file[table].as_array().ok_or(format!("{SOURCE} has no [[{table}]]"))?;
        for row in rows {
            all.push(read_row(row, if table == "row" { "deferred" } else { "reason" })?);
        }
    }
    Ok(all)
}

/// One row. `why` is what its table calls the reason for what is not done.
fn read_row(row: &Value, why: &str) -> Result<Row, String> {
    let text = |name: &str| row[name].as_str().map(str::to_owned);
    let id = text("id").ok_or(format!("{SOURCE}: a row has no id"))?;
    let fields = row.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let unknown = fields.iter().find(|field| !["id", "asks", "tests", "open", why].contains(&field.as_str()));
    if let Some(field) = unknown {
        return Err(format!(
            "{SOURCE}: {id} has a field `{field}`; there are id, asks, tests, open and {why}"
        ));
    }
    let tests = row["tests"].as_array().cloned().unwrap_or_default();
    let tests = tests.iter().filter_map(|test| test.as_str().map(str::to_owned)).collect();
    let asks = text("asks").ok_or(format!("{SOURCE}: {id} does not say what it asks"))?;
    Ok(Row { id, asks, tests, open: text("open"), deferred: text(why) })
}

/// What is wrong with the rows themselves: ids that are missing, said twice or unknown, and rows that say nothing or two
/// things. Each with the id that it is about.
pub(crate) fn faults(rows: &[Row]) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    let wanted: Vec<String> = CHAPTERS.iter().flat_map(|(name, _, many)| ids(name, *many)).collect();
    for id in &wanted {
        match rows.iter().filter(|row| row.id == *id).count() {
            0 => faults.push((id.clone(), "there is no row of this id".to_owned())),
            1 => {}
            many => faults.push((id.clone(), format!("{many} rows have this id"))),
        }
    }
    for row in rows {
        let mut say = |what: &str| faults.push((row.id.clone(), what.to_owned()));
        if !wanted.contains(&row.id) {
            say("nothing that was asked has this id");
        }
        match (row.tests.is_empty(), &row.open, &row.deferred) {
            (true, None, None) => say(
                "name the tests that show it, or say what is `open`, or why it is `deferred` (of a conflict or a gap, its `reason`)",
            ),
            (_, Some(_), Some(_)) => say("it is `open` and `deferred`; it can be one of them"),
            _ => {}
        }
    }
    let without = rows.iter().filter(|row| is_of_a_design(&row.id) && row.tests.is_empty()).count();
    if without > WITHOUT_TESTS_MAX {
        let what = format!("{without} rows of the designs have no test, {WITHOUT_TESTS_MAX} may");
        faults.push(("S0-01".to_owned(), what));
    }
    faults
}

/// Whether this text holds a test of this name. What a Rust test of `src` is, an attribute says; files of `tests` and
/// conformance suites also hold tests that a macro names.
pub(crate) fn holds(path: &str, name: &str, text: &str) -> bool {
    let (_, ending) = path.rsplit_once('.').unwrap_or(("", ""));
    match ending {
        "rs" => {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let is_declared = |line: &str| {
                line.split_once("fn ").is_some_and(|(_, rest)| {
                    rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']))
                })
            };
            let is_suite = path.contains("/tests/") || path.contains("conformance");
            let has_attribute = |at: usize| {
                let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
                above.into_iter().any(|line| line.contains("test"))
            };
            lines.iter().enumerate().any(|(at, line)| is_declared(line) && (is_suite || has_attribute(at)))
        }
        "py" => text.contains(&format!("def {name}(")),
        "go" => text.contains(&format!("func {name}(")),
        "kt" => text.contains(&format!("fun `{name}`(")) || text.contains(&format!("fun {name}(")),
        "json" => text.contains(&format!("\"name\": \"{name}\"")),
        "ts" | "mjs" | "js" => {
            ['"', '`', '\''].iter().any(|quote| text.contains(&format!("{quote}{name}{quote}")))
        }
        _ => false,
    }
}

/// Two lines: how many rows there are of each standing, of the designs and of what became of their disagreements and gaps.
fn counts(rows: &[Row]) -> String {
    let (designs, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| is_of_a_design(&row.id));
    let many = |rows: &[&Row], standing| rows.iter().filter(|row| row.standing() == standing).count();
    let without = designs.iter().filter(|row| row.tests.is_empty()).count();
    format!(
        "{} rows: {} shown by tests, {} open, {} deferred, reserved or rejected by their design, {without} of them without a test.\n\
         {} disagreements and gaps: {} shown by tests, {} open, {} with a reason why there is no more",
        designs.len(),
        many(&designs, Standing::Shown),
        many(&designs, Standing::Open),
        many(&designs, Standing::Deferred),
        others.len(),
        many(&others, Standing::Shown),
        many(&others, Standing::Open),
        many(&others, Standing::Deferred)
    )
}

/// The page that belongs to these rows.
pub(crate) fn page(rows: &[Row]) -> String {
    let mut page = format!(
        "# What was asked, and which tests show it\n\n\
         Made by `cargo xtask coverage` from `spec/coverage.toml`; do not edit it by hand. `cargo xtask tidy` fails when a row is\n\
         missing or names a test that is not there.\n\n\
         {}.\n\n\
         A row that is **open** says what is missing; tests that it names show a part of it. A row that is *deferred* says why\n\
         its design itself does not want it now. Where the five designs disagree, a setting of the profile satisfies each; where one\n\
         is unsafe, something else is done: the last chapters say what, and for what *reason* there is no more.\n",
        counts(rows)
    );
    for (name, about, many) in CHAPTERS {
        page.push_str(&format!(
            "\n## {name}: {about}\n\n| row | what it asks | shown by |\n| --- | --- | --- |\n"
        ));
        let ids: Vec<String> = ids(name, many).collect();
        for row in rows.iter().filter(|row| ids.contains(&row.id)) {
            page.push_str(&format!("| {} | {} | {} |\n", row.id, cell(&row.asks), shown_by(row)));
        }
    }
    page
}

fn shown_by(row: &Row) -> String {
    let mut parts: Vec<String> = row
        .tests
        .iter()
        .filter_map(|test| test.split_once("::"))
        .map(|(path, name)| {
            let (_, file) = path.rsplit_once('/').unwrap_or(("", path));
            format!("[{}: {}](../{path})", cell(file), cell(&name.replace('_', " ")))
        })
        .collect();
    parts.extend(row.open.iter().map(|what| format!("**open**: {}", cell(what))));
    let word = if is_of_a_design(&row.id) { "deferred" } else { "reason" };
    parts.extend(row.deferred.iter().map(|why| format!("*{word}*: {}", cell(why))));
    parts.join("; ")
}

/// A text that breaks no table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('[', "\\[").replace('*', "\\*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> Row {
        let tests = vec!["crates/a/tests/b.rs::it_is_so".to_owned()];
        Row { id: id.to_owned(), asks: "That it is so.".to_owned(), tests, open: None, deferred: None }
    }

    fn all() -> Vec<Row> {
        CHAPTERS.iter().flat_map(|(name, _, many)| ids(name, *many)).map(|id| row(&id)).collect()
    }

    #[test]
    fn the_designs_have_504_rows_and_91_disagreements_and_gaps() {
        assert_eq!((all().len(), faults(&all())), (504 + 91, Vec::new()));
        assert!(
            counts(&all()).starts_with("504 rows: 504 shown by tests, 0 open, 0 deferred"),
            "{}",
            counts(&all())
        );
        assert!(counts(&all()).contains("91 disagreements and gaps: 91 shown"), "{}", counts(&all()));
    }

    #[test]
    fn forty_rows_without_a_test_are_allowed_and_one_more_is_not() {
        let mut rows = all();
        for row in rows.iter_mut().take(WITHOUT_TESTS_MAX + 1) {
            row.tests.clear();
            row.deferred = Some("Words only.".to_owned());
        }
        assert_eq!(faults(&rows).len(), 1);
        rows[0].tests = vec!["crates/a/tests/b.rs::it_is_so".to_owned()];
        assert_eq!(faults(&rows), []);
    }

    #[test]
    fn each_table_has_its_own_word_for_a_reason() {
        let text = |table: &str, why: &str| {
            let row = |table: &str, id: &str, why: &str| {
                format!("[[{table}]]\nid = \"{id}\"\nasks = \"x\"\n{why} = \"y\"\n")
            };
            TABLES.map(|one| row(one, one, if one == table { why } else { "open" })).concat()
        };
        assert_eq!(read(&text("row", "deferred")).unwrap()[0].deferred.as_deref(), Some("y"));
        assert_eq!(read(&text("gap", "reason")).unwrap()[2].deferred.as_deref(), Some("y"));
        assert!(read(&text("row", "reason")).is_err() && read(&text("conflict", "deferred")).is_err());
    }

    #[test]
    fn a_row_that_is_missing_doubled_unknown_or_empty_is_found() {
        let mut rows = all();
        rows.remove(3);
        rows.push(row("S1-07"));
        rows.push(row("S9-01"));
        rows[0].tests.clear();
        let ids: Vec<String> = faults(&rows).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["S0-04", "S1-07", "S0-01", "S9-01"]);
    }

    #[test]
    fn tests_of_every_language_are_found_by_their_names_and_no_others() {
        let rust = "#[test]\nfn it_holds() {}\nfn it_helps() {}\n";
        assert!(holds("crates/a/src/b.rs", "it_holds", rust));
        assert!(
            !holds("crates/a/src/b.rs", "it_helps", rust) && !holds("crates/a/src/b.rs", "it_hold", rust)
        );
        assert!(holds("crates/a/tests/suite/b.rs", "it_helps", rust));
        assert!(
            holds("a/test_b.py", "test_it", "    def test_it(self):")
                && !holds("a/b.py", "test_it", "# test_it")
        );
        assert!(holds("a/b_test.go", "TestIt", "func TestIt(t *testing.T) {"));
        assert!(holds("a/b.test.ts", "it holds, once", "test(\"it holds, once\", () => {});"));
        assert!(holds("a/B.kt", "it holds", "fun `it holds`() {"));
        assert!(!holds("a/b.md", "it", "it"));
    }

    #[test]
    fn the_page_says_how_each_row_stands() {
        let mut rows = vec![row("S0-01"), row("S0-02"), row("C12"), row("G0-1")];
        rows[1].open = Some("the other half".to_owned());
        rows[2].deferred = Some("nobody asks for it".to_owned());
        let page = page(&rows);
        assert!(page.contains("2 rows: 1 shown by tests, 1 open, 0 deferred"), "{page}");
        assert!(
            page.contains("2 disagreements and gaps: 1 shown by tests, 0 open, 1 with a reason"),
            "{page}"
        );
        assert!(page.contains("| C12 |") && page.contains("*reason*: nobody asks for it"), "{page}");
        assert!(page.contains("[b.rs: it is so](../crates/a/tests/b.rs)"), "{page}");
        assert!(page.contains("**open**: the other half"), "{page}");
    }
}
