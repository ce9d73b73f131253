//! `cargo xtask instructions`: how many instructions a request costs, counted by callgrind, against what is on record.
//! Counts do not depend on how busy the machine is, so a change of a tenth is the code's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use semel_testbed::failure::Failure;
use semel_testbed::process;

use crate::callgrind;

/// Count the instructions of a request and compare with what is on record.
///
/// Builds a gateway with its client and its upstream on one thread, runs it under callgrind with N and with 2N requests for
/// each path, and compares (instructions(2N) - instructions(N)) / N with bench/instructions.toml. The paths: pass (no key),
/// fresh and replay with the store in memory, fresh-sqlite on the embedded store, accept (a message given to the outbox).
/// Fails when a path costs over a tenth more. Installs valgrind where it can; where it cannot, it says so and checks nothing.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Write what was counted into bench/instructions.toml.
    #[arg(long)]
    record: bool,
}

const RECORD: &str = "bench/instructions.toml";
const PATHS: [&str; 6] = ["pass", "pass-logged", "fresh", "replay", "fresh-sqlite", "accept"];
const REQUESTS: u64 = 500;
/// How much more a path may cost, in hundredths.
const GROWTH_MAX: u64 = 10;

/// Instructions of one request, by path.
type Counts = BTreeMap<String, u64>;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let valgrind = match callgrind::find() {
        Ok(valgrind) => valgrind,
        Err(why) => {
            println!("NOT CHECKED: {why}");
            return Ok(());
        }
    };
    let binary = callgrind::build("instructions")?;
    let counted = count_all(&valgrind, &binary)?;
    let file = process::repository().join(RECORD);
    if args.record {
        fs::write(&file, written(&counted)).map_err(|error| format!("cannot write {RECORD}: {error}"))?;
    }
    let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {RECORD}: {error}"))?;
    let recorded = read(&text)?;
    let (lines, grown) = compare(&recorded, &counted);
    println!("{}", lines.join("\n"));
    match grown.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "{} cost over a tenth more instructions than {RECORD} says. Make it leaner, or say why in the commit that \
             records the new figure: cargo xtask instructions --record",
            grown.join(" and ")
        ))),
    }
}

fn count_all(valgrind: &Path, binary: &Path) -> Result<Counts, Failure> {
    let count = |path, requests| callgrind::run(valgrind, binary, path, requests, Path::new("/dev/null"));
    let mut counts = Counts::new();
    for path in PATHS {
        let (once, twice) = (count(path, REQUESTS)?, count(path, REQUESTS * 2)?);
        counts.insert(path.to_owned(), twice.saturating_sub(once) / REQUESTS);
    }
    Ok(counts)
}

/// One line for each path, and the paths that grew too much. A path that is not on record has grown.
fn compare(recorded: &Counts, counted: &Counts) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut grown) = (Vec::new(), Vec::new());
    for (path, now) in counted {
        let Some(before) = recorded.get(path) else {
            lines.push(format!("{path:12} {now:>9} instructions a request, not on record"));
            grown.push(path.clone());
            continue;
        };
        let change = *now as f64 / *before as f64 - 1.0;
        lines.push(format!(
            "{path:12} {now:>9} instructions a request, on record {before:>9} ({:+.1} %)",
            change * 100.0
        ));
        if now * 100 > before * (100 + GROWTH_MAX) {
            grown.push(path.clone());
        }
    }
    (lines, grown)
}

fn read(text: &str) -> Result<Counts, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) =
                line.split_once('=').ok_or_else(|| format!("{RECORD}: `{line}` is not NAME = COUNT"))?;
            let count = value
                .trim()
                .replace('_', "")
                .parse()
                .map_err(|_| format!("{RECORD}: `{line}` has no count"))?;
            Ok((name.trim().to_owned(), count))
        })
        .collect()
}

fn written(counts: &Counts) -> String {
    let mut text = "# Instructions of one request through gateway and gate, with the store in memory or (-sqlite) the embedded one, or of\n\
                    # one message that the outbox accepts. Client and upstream are counted too, and SHA-256 in software, as valgrind has\n\
                    # it. `cargo xtask instructions` compares; CI fails when a path costs over a tenth more.\n"
        .to_owned();
    for (path, count) in counts {
        text.push_str(&format!("{path} = {count}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(fresh: u64) -> Counts {
        Counts::from([("fresh".to_owned(), fresh)])
    }

    #[test]
    fn growth_beyond_a_tenth_is_found_and_less_is_not() {
        assert_eq!(compare(&counts(1000), &counts(1100)).1, [] as [&str; 0]);
        assert_eq!(compare(&counts(1000), &counts(500)).1, [] as [&str; 0]);
        assert_eq!(compare(&counts(1000), &counts(1101)).1, ["fresh"]);
        assert_eq!(compare(&Counts::new(), &counts(1)).1, ["fresh"]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(read(&written(&counts(225_504))), Ok(counts(225_504)));
        assert!(read("fresh 12").is_err() && read("fresh = many").is_err());
    }

    #[test]
    fn every_path_is_on_record() {
        let recorded = read(&fs::read_to_string(process::repository().join(RECORD)).unwrap()).unwrap();
        assert!(PATHS.iter().all(|path| recorded.contains_key(*path)), "{recorded:?}");
    }
}
