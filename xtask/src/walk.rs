//! `cargo xtask walk`: how far a keyed request walks through the house. Owns what counts as a step: a function of ours that
//! is called once more for each request more. Measures a development build, in which nothing is inlined.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::Scratch;

use crate::callgrind::{self, Calls};

/// Count the files and crates that one request visits.
///
/// Sends requests with fresh keys through a gateway on the embedded store, in a development build under callgrind, and prints
/// how many source files below crates/ one of them visits, and how often the walk leaves one crate for another: the pairs of
/// crates that call each other, the files that call into another crate, and the pairs of files. docs/design/walk.md keeps the
/// figures. Installs valgrind where it can.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the files and every call that leaves its crate as well.
    #[arg(long)]
    files: bool,
}

/// The path that is walked, as `semel-bench-instructions` calls it.
const PATH: &str = "fresh-sqlite";
/// Requests of the shorter run; the longer one has twice as many.
const REQUESTS: u64 = 20;

/// A file of ours: its crate, and its path below crates/.
type File = (String, String);

/// What one request visits.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walk {
    files: BTreeSet<File>,
    /// Calls from a file of one crate to a file of another.
    leaves: BTreeSet<(File, File)>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let valgrind = callgrind::find()?;
    let binary = callgrind::build("dev")?;
    let scratch = Scratch::named("walk")?;
    let profile = |requests: u64| -> Result<Calls, Failure> {
        let file = scratch.path().join(requests.to_string());
        callgrind::run(&valgrind, &binary, PATH, requests, &file)?;
        let text = fs::read(&file).map_err(|error| format!("cannot read callgrind's profile: {error}"))?;
        Ok(callgrind::calls(&String::from_utf8_lossy(&text)))
    };
    let walk = walk(&profile(REQUESTS)?, &profile(REQUESTS * 2)?, REQUESTS);
    println!("{}", if args.files { listing(&walk) + &figures(&walk) } else { figures(&walk) });
    Ok(())
}

/// What grew with the number of requests. What is done now and then, by a timer or at the start, did not.
fn walk(once: &Calls, twice: &Calls, requests: u64) -> Walk {
    let mut walk = Walk::default();
    for (call, count) in twice {
        let more = count.saturating_sub(once.get(call).copied().unwrap_or(0));
        // A call that is sometimes made in a batch with another's is a step too.
        if more * 10 < requests * 9 {
            continue;
        }
        let (from, to) = (ours(&call.0.1), ours(&call.1.1));
        walk.files.extend(from.clone());
        walk.files.extend(to.clone());
        if let (Some(from), Some(to)) = (from, to)
            && from.0 != to.0
        {
            walk.leaves.insert((from, to));
        }
    }
    walk
}

fn ours(path: &str) -> Option<File> {
    let root = process::repository().join("crates");
    let below = path.strip_prefix(root.to_str()?)?.trim_start_matches('/');
    Some((below.split('/').next()?.to_owned(), below.to_owned()))
}

fn figures(walk: &Walk) -> String {
    let mut by_crate: BTreeMap<&str, usize> = BTreeMap::new();
    for (room, _) in &walk.files {
        *by_crate.entry(room).or_default() += 1;
    }
    let rooms: Vec<String> = by_crate.iter().map(|(room, count)| format!("{room} {count}")).collect();
    let pairs: BTreeSet<(&str, &str)> =
        walk.leaves.iter().map(|(from, to)| (from.0.as_str(), to.0.as_str())).collect();
    let doors: BTreeSet<(&str, &str)> =
        walk.leaves.iter().map(|(from, to)| (from.1.as_str(), to.0.as_str())).collect();
    let names: Vec<String> = pairs.iter().map(|(from, to)| format!("{from} > {to}")).collect();
    format!(
        "source files below crates/      {:>4}  ({})\n\
         crate-to-crate call edges       {:>4}  ({})\n\
         files that call another crate   {:>4}\n\
         file-to-file calls across       {:>4}",
        walk.files.len(),
        rooms.join(", "),
        pairs.len(),
        names.join(", "),
        doors.len(),
        walk.leaves.len(),
    )
}

fn listing(walk: &Walk) -> String {
    let files = walk.files.iter().map(|(_, file)| format!("{file}\n"));
    let leaves = walk.leaves.iter().map(|(from, to)| format!("{} > {}\n", from.1, to.1));
    files.chain(["\n".to_owned()]).chain(leaves).chain(["\n".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(all: &[(&str, &str, u64)]) -> Calls {
        let function = |file: &str| {
            let root = process::repository().join("crates").display().to_string();
            (
                format!("in {file}"),
                if file.starts_with('/') { file.to_owned() } else { format!("{root}/{file}") },
            )
        };
        all.iter().map(|(from, to, count)| ((function(from), function(to)), *count)).collect()
    }

    #[test]
    fn only_what_grows_with_the_requests_is_on_the_walk() {
        let once =
            calls(&[("gate/src/a.rs", "store/src/b.rs", 20), ("gate/src/start.rs", "gate/src/a.rs", 5)]);
        let twice = calls(&[
            ("gate/src/a.rs", "store/src/b.rs", 40),
            ("gate/src/start.rs", "gate/src/a.rs", 6),
            ("/rustc/core.rs", "store/src/c.rs", 20),
        ]);
        let found = walk(&once, &twice, 20);
        let files: Vec<&str> = found.files.iter().map(|(_, file)| file.as_str()).collect();
        assert_eq!(files, ["gate/src/a.rs", "store/src/b.rs", "store/src/c.rs"]);
        assert_eq!(found.leaves.len(), 1);
    }

    #[test]
    fn edges_are_counted_by_crate_by_file_and_by_pair() {
        let twice = calls(&[
            ("gate/src/a.rs", "store/src/b.rs", 20),
            ("gate/src/a.rs", "store/src/c.rs", 20),
            ("gate/src/d.rs", "store/src/c.rs", 20),
            ("gate/src/d.rs", "gate/src/a.rs", 20),
        ]);
        let text = figures(&walk(&Calls::new(), &twice, 20));
        let number = |line: &str| {
            let line = text.lines().find(|found| found.starts_with(line)).unwrap();
            line.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap()
        };
        assert_eq!(number("source files"), 4);
        assert_eq!(number("crate-to-crate"), 1);
        assert_eq!(number("files that call"), 2);
        assert_eq!(number("file-to-file"), 3);
    }
}
