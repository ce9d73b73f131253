//! What came of it: every promise counted, against the effects that the service itself has counted.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::clients::{End, Sent, is_not_kept};
use super::faults::Fault;
use super::http::Answer;
use super::upstream::Upstream;

/// Effects of a run that proves something.
const EFFECTS_MIN: u64 = 100;

/// How many ask again at a time.
const ASKING: usize = 8;

/// How long one of them goes on where nothing final is said.
const INSISTING: Duration = Duration::from_secs(30);

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: &'static str,
    count: usize,
    /// Whether anything but zero breaks a promise.
    is_promise: bool,
}

impl Row {
    /// Something that is counted.
    pub(crate) fn count(name: &'static str, count: usize) -> Self {
        Self { name, count, is_promise: false }
    }

    /// Something that must not be.
    pub(crate) fn promise(name: &'static str, count: usize) -> Self {
        Self { name, count, is_promise: true }
    }

    /// What it says where it is a promise that does not hold.
    pub(crate) fn broken(&self) -> Option<String> {
        (self.is_promise && self.count > 0).then(|| format!("{}: {}", self.name, self.count))
    }
}

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    requests: u64,
    sends: u64,
    acknowledged: u64,
    unknown: u64,
    gave_up: u64,
    effects: u64,
    broken_off: u64,
    /// Requests with more than one effect.
    twice: Vec<String>,
    /// Acknowledged requests without an effect.
    lost: Vec<String>,
    /// Acknowledged requests whose answer is another one when asked again.
    changed: Vec<String>,
    /// What the outboxes and the relays came to.
    more: Vec<Row>,
}

pub(crate) fn judge(sent: &[Sent], upstream: &Upstream, more: Vec<Row>) -> Judged {
    // What asking again does to the ledger counts too.
    let changed = asked_again(sent);
    let effects = upstream.effects();
    let count = |sent: &Sent| effects.get(&sent.request.intent).copied().unwrap_or(0);
    let mut judged = Judged {
        requests: sent.len() as u64,
        effects: effects.values().map(|count| u64::from(*count)).sum(),
        broken_off: upstream.broken_off(),
        changed,
        more,
        ..Judged::default()
    };
    for one in sent {
        judged.sends += u64::from(one.sends);
        if count(one) > 1 {
            judged.twice.push(format!("{} ({} times)", one.request.intent, count(one)));
        }
        match &one.end {
            End::Acknowledged(_) => {
                judged.acknowledged += 1;
                if count(one) == 0 {
                    judged.lost.push(one.request.intent.clone());
                }
            }
            End::Unknown => judged.unknown += 1,
            End::GaveUp => judged.gave_up += 1,
        }
    }
    judged
}

/// Asks for every acknowledged answer once more, several at a time; those that are another one now.
fn asked_again(sent: &[Sent]) -> Vec<String> {
    let (next, changed) = (AtomicUsize::new(0), Mutex::new(Vec::<String>::new()));
    let ask = || {
        loop {
            let at = next.fetch_add(1, Ordering::SeqCst);
            let Some(one) = sent.get(at) else { return };
            let End::Acknowledged(answer) = &one.end else { continue };
            let Some(token) = one.tokens.last() else { continue };
            // Once a promise is broken, nobody needs to be waited for.
            let is_whole = changed.lock().is_ok_and(|changed| changed.is_empty());
            let within = if is_whole { INSISTING } else { Duration::ZERO };
            let again = insist(within, || one.request.send(*token, at as u64, Duration::from_secs(10)));
            let is_same = again.as_ref().is_ok_and(|again| {
                (again.status, &again.body) == (answer.status, &answer.body)
                    || is_not_kept(&one.request, again)
            });
            if !is_same && let Ok(mut changed) = changed.lock() {
                changed.push(format!("{}: {again:?}", one.request.intent));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..ASKING {
            scope.spawn(ask);
        }
    });
    changed.into_inner().unwrap_or_default()
}

/// Asks until a gate that can answer does, or time is up; then what was said last. What was acknowledged is settled: a gate
/// that says otherwise, also that it is under way, has said enough.
fn insist(within: Duration, ask: impl Fn() -> std::io::Result<Answer>) -> std::io::Result<Answer> {
    let began = Instant::now();
    loop {
        let said = ask();
        let is_final = said.as_ref().is_ok_and(|said| said.status < 500);
        if is_final || began.elapsed() >= within {
            return said;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

impl Judged {
    /// The promise that does not hold, if there is one.
    pub(crate) fn broken(&self) -> Option<String> {
        let some = |what: &str, list: &[String]| {
            list.first().map(|first| format!("{} requests {what}, the first {first}", list.len()))
        };
        some("took effect twice", &self.twice)
            .or_else(|| some("were acknowledged and did not take effect", &self.lost))
            .or_else(|| some("were answered otherwise when asked again", &self.changed))
            .or_else(|| self.more.iter().find_map(Row::broken))
            .or_else(|| {
                (self.gave_up > 0)
                    .then(|| format!("{} requests were neither answered nor unknown", self.gave_up))
            })
            .or_else(|| {
                (self.effects < EFFECTS_MIN)
                    .then(|| format!("only {} effects: this proves nothing", self.effects))
            })
    }
}

/// The table that a run ends with.
pub(crate) fn table(seed: u64, done: &[Fault], judged: &Judged) -> String {
    let mut counts: BTreeMap<Fault, u32> = BTreeMap::new();
    for fault in done {
        *counts.entry(*fault).or_default() += 1;
    }
    let mut text = format!("chaos, seed {seed}\n\n  {:<52} {:>8}\n", "fault", "times");
    for fault in Fault::ALL {
        text.push_str(&format!("  {:<52} {:>8}\n", fault.name(), counts.get(&fault).copied().unwrap_or(0)));
    }
    text.push_str(&format!("  {:<52} {:>8}\n", "all faults", done.len()));
    text.push_str(&format!(
        "  {:<52} {:>8}\n",
        "an answer of the service broken off after the effect", judged.broken_off
    ));
    let rows = [
        ("logical requests", judged.requests),
        ("sends", judged.sends),
        ("effects", judged.effects),
        ("acknowledged", judged.acknowledged),
        ("told that nobody knows", judged.unknown),
        ("neither", judged.gave_up),
        ("took effect twice", judged.twice.len() as u64),
        ("acknowledged without an effect", judged.lost.len() as u64),
        ("answered otherwise when asked again", judged.changed.len() as u64),
    ];
    text.push_str(&format!("\n  {:<52} {:>8}\n", "promise", "count"));
    for (name, count) in rows {
        text.push_str(&format!("  {name:<52} {count:>8}\n"));
    }
    for Row { name, count, .. } in &judged.more {
        text.push_str(&format!("  {name:<52} {count:>8}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_broken_promise_is_named() {
        let good = Judged { effects: 1000, ..Judged::default() };
        assert_eq!(good.broken(), None);
        for (judged, word) in [
            (Judged { twice: vec!["a".to_owned()], ..Judged::default() }, "twice"),
            (Judged { lost: vec!["a".to_owned()], ..Judged::default() }, "did not take effect"),
            (Judged { changed: vec!["a".to_owned()], ..Judged::default() }, "otherwise"),
            (Judged { more: vec![Row::promise("lost", 1)], ..Judged::default() }, "lost: 1"),
            (Judged { gave_up: 1, ..Judged::default() }, "neither"),
            (Judged::default(), "proves nothing"),
        ] {
            assert!(judged.broken().unwrap().contains(word), "{word}");
        }
    }
}
