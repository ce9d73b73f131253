//! Where the gateway's time goes: stacks sampled by `perf` under each load, drawn as flame graphs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use semel_testbed::failure::Failure;
use semel_testbed::{os, process, programs};

use super::contestant::{Contestant, Sends, Serves, Store};
use super::load::{self, REPLAYED_KEYS, Shot};
use super::result::{Outcome, Row};
use super::world::World;
use super::{Asked, page};

const GATE: Serves = Serves::Gate(Store::Sqlite, 0);
const CONTESTANTS: &[(&str, Contestant)] = &[
    ("pass", Contestant::new("gateway, no key", GATE, Sends::Unkeyed)),
    ("fresh", Contestant::new("gateway, fresh, SQLite", GATE, Sends::Fresh)),
    ("replay", Contestant::new("gateway, replay, SQLite", GATE, Sends::Replays)),
];
const WIDTH: f64 = 1200.0;
const ROW: f64 = 16.0;
/// Frames narrower than this are not drawn.
const NARROWEST: f64 = 4.0;

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    programs::program("perf", "linux-perf")?;
    let mut outcome = Outcome::default();
    for (name, contestant) in CONTESTANTS {
        let running = world.start(contestant)?;
        if contestant.sends == Sends::Replays {
            load::seed_replays(&running, REPLAYED_KEYS / 2)?;
        }
        let data = world.folder().join(format!("{name}.perf"));
        let mut record = Command::new("perf");
        record.args([
            "record",
            "-q",
            "--call-graph",
            "dwarf,8192",
            "-F",
            "299",
            "-p",
            &running.leaders[0].to_string(),
        ]);
        record.arg("-o").arg(&data).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        os::die_with_parent(&mut record, libc::SIGKILL);
        let mut perf = record.spawn().map_err(|error| format!("cannot start perf: {error}"))?;
        let shot = Shot {
            sends: contestant.sends,
            connections: contestant.connections,
            streams: 0,
            seconds: asked.seconds(),
            seed: 1,
            rate: None,
            keys: REPLAYED_KEYS / 2,
            running: &running,
            folder: world.folder(),
        };
        let sample = shot.fire();
        let _ = os::send(perf.id(), libc::SIGINT);
        process::wait_or_kill(&mut perf);
        let text = process::read(Command::new("perf").args(["script", "-i"]).arg(&data))?;
        let stacks = folded(&text);
        if !asked.quick {
            let file = page::folder().join(format!("{name}.svg"));
            fs::write(&file, svg(contestant.name, &stacks))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let samples = stacks.values().sum::<u64>();
        outcome.notes.push(format!("{}: {samples} samples", contestant.name));
        let durability = contestant.durability().to_owned();
        outcome.rows.push(Row { name: contestant.name.to_owned(), durability, samples: vec![sample?] });
    }
    Ok(outcome)
}

/// Stacks of `perf script`, outermost frame first, with how often each was seen.
fn folded(text: &str) -> BTreeMap<Vec<String>, u64> {
    let mut stacks = BTreeMap::new();
    for block in text.split("\n\n") {
        let mut frames: Vec<String> = block.lines().filter_map(frame).collect();
        if !frames.is_empty() {
            frames.reverse();
            *stacks.entry(frames).or_default() += 1;
        }
    }
    stacks
}

/// The name in a line such as `   55d0c0ffee semel_gate::pipeline::walk+0x1f (/usr/bin/semel)`.
fn frame(line: &str) -> Option<String> {
    let line = line.strip_prefix([' ', '\t'])?.trim_start();
    let (address, rest) = line.split_once(' ')?;
    if !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let name = rest.rsplit_once(" (").map_or(rest, |(name, _)| name);
    let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
    Some(name.to_owned())
}

/// A frame and what it called.
#[derive(Default)]
struct Node {
    count: u64,
    below: BTreeMap<String, Node>,
}

fn svg(title: &str, stacks: &BTreeMap<Vec<String>, u64>) -> String {
    let mut root = Node::default();
    for (frames, count) in stacks {
        root.count += count;
        let mut node = &mut root;
        for name in frames {
            node = node.below.entry(name.clone()).or_default();
            node.count += count;
        }
    }
    let mut frames = Vec::new();
    let deepest = draw(&root, 0.0, 0, root.count.max(1), &mut frames);
    let height = 40.0 + ROW * (deepest + 1) as f64;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"monospace\" \
         font-size=\"11\"><rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/><text x=\"8\" y=\"20\" \
         font-size=\"14\">{}: {} samples; point at a frame for its name</text>\n{}</svg>\n",
        escaped(title),
        root.count,
        frames.join("\n")
    )
}

/// Draws what a frame called below it, and returns the deepest row.
fn draw(node: &Node, left: f64, depth: usize, all: u64, frames: &mut Vec<String>) -> usize {
    let (mut left, mut deepest) = (left, depth);
    for (name, below) in &node.below {
        let width = below.count as f64 * WIDTH / all as f64;
        if width >= NARROWEST {
            let (top, name, part) =
                (32.0 + ROW * depth as f64, escaped(name), below.count as f64 * 100.0 / all as f64);
            let shown: String = name.chars().take((width / 7.0) as usize).collect();
            // Cut within an entity, a name would not be one.
            let shown = if shown.contains('&') { String::new() } else { shown };
            let colour = if name.contains("semel") { "#7fb2cc" } else { "#e2c79b" };
            frames.push(format!(
                "<g><title>{name} {part:.1} %</title><rect x=\"{left:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" \
                 height=\"{:.0}\" fill=\"{colour}\" stroke=\"#ffffff\" stroke-width=\"0.4\"/><text x=\"{:.1}\" \
                 y=\"{:.0}\">{shown}</text></g>",
                ROW - 1.0,
                left + 2.0,
                top + 11.0
            ));
            deepest = deepest.max(draw(below, left, depth + 1, all, frames));
        }
        left += width;
    }
    deepest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "semel 12 [000] 1.0: 1 cpu-clock:\n\t55aa inner<T>+0x1f (/bin/semel)\n\t55ab outer+0x2 (/bin/semel)\n\n\
                        semel 12 [000] 1.1: 1 cpu-clock:\n\tffff82 other+0x9 ([kernel.kallsyms])\n\t55ab outer+0x2 (/bin/semel)\n\n";

    #[test]
    fn stacks_are_read_from_the_outside_in() {
        let stacks = folded(SAID);
        assert_eq!(stacks.len(), 2);
        assert_eq!(stacks.get(&vec!["outer".to_owned(), "inner<T>".to_owned()]), Some(&1));
    }

    #[test]
    fn a_caller_is_as_wide_as_what_it_called() {
        let svg = svg("x", &folded(SAID));
        assert!(
            svg.contains("<title>outer 100.0 %</title>")
                && svg.contains("<title>inner&lt;T&gt; 50.0 %</title>"),
            "{svg}"
        );
    }
}
