//! `cargo xtask tidy`: the rules of the tree that no compiler checks. Owns the list of checks and how findings
//! are shown; each rule lives in its own file, as a function from text to findings.

mod applications;
mod arrows;
mod coverage;
mod cycles;
mod files;
mod headers;
mod licences;
mod links;
mod markdown;
mod names;
mod problems;
mod purity;
mod reference;
mod reserved;
mod size;
mod unfinished;
mod vectors;

use files::Tree;
use semel_testbed::failure::Failure;

/// Check the rules of the tree that no compiler checks.
///
/// Prints each check with `ok` or its findings, and exits with 1 if there are any: arrows between crates, cycles between
/// modules, purity of the contract, file headers, names, Markdown links, problem pages, vectors, the reference of the
/// settings, coverage of the requirements, what is reserved, licences, number of packages, size of the applications, unfinished code.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Print the cycles between the modules of each crate with their arrows, and check nothing.
    #[arg(long)]
    cycles: bool,
}

/// Something that is not as it should be, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, what: what.into() }
    }
}

/// What one check saw.
struct Seen {
    /// How much was looked at, so that a check which looks at nothing is noticed.
    extent: String,
    findings: Vec<Finding>,
}

/// One rule.
struct Check {
    name: &'static str,
    run: fn(&Tree) -> Result<Seen, String>,
}

const CHECKS: &[Check] = &[
    Check { name: "arrows", run: arrows::check },
    Check { name: "cycles", run: cycles::check },
    Check { name: "purity", run: purity::check },
    Check { name: "headers", run: headers::check },
    Check { name: "names", run: names::check },
    Check { name: "links", run: links::check },
    Check { name: "problems", run: problems::check },
    Check { name: "vectors", run: vectors::check },
    Check { name: "reference", run: reference::check },
    Check { name: "coverage", run: coverage::check },
    Check { name: "reserved", run: reserved::check },
    Check { name: "licences", run: licences::check },
    Check { name: "size", run: size::check },
    Check { name: "applications", run: applications::check },
    Check { name: "unfinished", run: unfinished::check },
];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let tree = Tree::of_repository()?;
    if args.cycles {
        println!("{}", cycles::figures(&tree));
        return Ok(());
    }
    report(&tree)
}

fn report(tree: &Tree) -> Result<(), Failure> {
    let mut found = 0;
    for Check { name, run } in CHECKS {
        match run(tree) {
            Ok(Seen { extent, findings }) if findings.is_empty() => println!("{name:12} ok ({extent})"),
            Ok(Seen { extent, findings }) => {
                println!("{name:12} {} found ({extent})", findings.len());
                for Finding { file, line, what } in &findings {
                    println!("  {file}:{line}: {what}");
                }
                found += findings.len();
            }
            Err(error) => {
                println!("{name:12} could not be checked: {error}");
                found += 1;
            }
        }
    }
    match found {
        0 => Ok(()),
        1 => Err(Failure::Failed("tidy found 1 thing to put right".to_owned())),
        more => Err(Failure::Failed(format!("tidy found {more} things to put right"))),
    }
}
