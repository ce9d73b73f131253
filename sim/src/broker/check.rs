//! What is checked at rest: one append for an id, with all its rows; nothing that was refused; every subscriber's inbox exactly by
//! its interval; and who was subscribed when.

use std::collections::BTreeMap;

use semel_delivery::relay::store::sql::{Database as _, Row};

use crate::broker::mesh::{Change, Fate, Mesh, Sent};
use crate::broker::readers::Reader;
use crate::broker::servers::Servers;
use crate::stage::{Invariant, lock};

/// A number of a line: from, until.
type Interval = (i64, Option<i64>);

/// What the database says at rest.
struct Found {
    /// Line numbers by their names, `topic:NAME` or `member:NAME`.
    lines: BTreeMap<String, (i64, i64)>,
    /// Line and member.
    intervals: BTreeMap<(i64, String), Vec<Interval>>,
    history: BTreeMap<(i64, i64), String>,
}

impl Mesh {
    async fn rows(&self, sql: &str) -> Vec<Row> {
        self.base().read(sql, vec![]).await.unwrap_or_else(|error| {
            self.fail(Invariant::I15, None, format!("the database cannot be read: {error}"));
            Vec::new()
        })
    }

    fn breaks(&self, why: String) {
        self.fail(Invariant::I10, None, why);
    }

    async fn find(&self) -> Found {
        let text = |row: &Row, at| row.text(at).unwrap_or_default();
        let int = |row: &Row, at| row.int(at).unwrap_or_default();
        let lines = self.rows("SELECT kind, ref, line, next_number FROM line").await;
        let lines = lines
            .iter()
            .map(|row| (format!("{}:{}", text(row, 0), text(row, 1)), (int(row, 2), int(row, 3))));
        let mut intervals: BTreeMap<(i64, String), Vec<Interval>> = BTreeMap::new();
        for row in self.rows("SELECT line, member, since, until FROM topic_subscription ORDER BY since").await
        {
            let until = row.maybe_int(3).unwrap_or_default();
            intervals.entry((int(&row, 0), text(&row, 1))).or_default().push((int(&row, 2), until));
        }
        let history = self.rows("SELECT line, number, broker_message_id FROM message_history").await;
        let history = history.iter().map(|row| ((int(row, 0), int(row, 1)), text(row, 2)));
        Found { lines: lines.collect(), intervals, history: history.collect() }
    }

    /// Whether a reader has all that is its own.
    pub(super) async fn is_complete(&self, reader: &Reader) -> bool {
        let found = self.find().await;
        reader.lines.iter().all(|line| {
            let (number, intervals) = found.own(reader, line);
            let inbox = lock(&reader.inboxes).get(line).cloned().unwrap_or_default();
            let own = found.history.keys().filter(|(line, at)| *line == number && has(&intervals, *at));
            own.into_iter().all(|(_, at)| inbox.came.contains_key(at))
        })
    }

    /// Everything has come to rest.
    pub(super) async fn check_everything(&self, servers: &Servers, readers: &[std::sync::Arc<Reader>]) {
        let found = self.find().await;
        self.check_lines(&found);
        self.check_ids(&found).await;
        self.check_changes(&found);
        for reader in readers.iter().filter(|reader| !reader.is_asleep()) {
            self.check_reader(&found, reader);
        }
        match servers.any().broker.orphans().await {
            Ok(orphans) if orphans.findings.is_empty() => {}
            Ok(orphans) => self.breaks(format!("rows without each other: {:?}", orphans.findings)),
            Err(error) => self.fail(Invariant::I15, None, format!("orphans cannot be looked for: {error}")),
        }
    }

    /// Numbers are given once, without holes, and never for another message.
    fn check_lines(&self, found: &Found) {
        let mut numbers = lock(&self.numbers);
        for (place, message) in &found.history {
            let known = numbers.entry(*place).or_insert_with(|| message.clone());
            if known != message {
                self.breaks(format!("number {place:?} was {known} and is {message}"));
            }
        }
        for (name, (line, next)) in &found.lines {
            let given = numbers.range((*line, 0)..(*line, i64::MAX)).count();
            if i64::try_from(given) != Ok(next - 1) {
                self.breaks(format!("{name} goes on at {next}, and {given} numbers were given"));
            }
        }
    }

    /// An id is committed exactly where its message is, for those who were told so, and for nobody who was refused.
    async fn check_ids(&self, found: &Found) {
        let sql =
            "SELECT client_message_id, broker_message_id, line, number, kind FROM client_message_dedupe";
        let mut committed: BTreeMap<String, (String, (i64, i64))> = BTreeMap::new();
        for row in self.rows(sql).await.iter().filter(|row| row.text(4).as_deref() == Ok("committed")) {
            let place = (row.int(2).unwrap_or(0), row.int(3).unwrap_or(0));
            committed.insert(row.text(0).unwrap_or_default(), (row.text(1).unwrap_or_default(), place));
        }
        if committed.len() != found.history.len() {
            self.breaks(format!("{} ids and {} messages", committed.len(), found.history.len()));
        }
        let sent = self.sent();
        for (id, (message, place)) in &committed {
            let Some(one) = sent.get(id) else { return self.breaks(format!("{id} was never sent")) };
            match &one.fate {
                Fate::Out => self.breaks(format!("{id} is in as {place:?} and was out")),
                Fate::In(receipt) if receipt.message != *message => {
                    self.breaks(format!("{id} is {message} and its sender was told {receipt:?}"));
                }
                Fate::In(_) | Fate::Open => {}
            }
            if found.history.get(place) != Some(message) {
                self.breaks(format!("{id} is {message} and not at {place:?}"));
            }
        }
        for (id, one) in sent.iter().filter(|(_, one)| !one.is_old) {
            if matches!(one.fate, Fate::In(_)) && !committed.contains_key(id) {
                self.breaks(format!("{id} is gone, and its sender was told that it is in"));
            }
        }
    }

    /// Whoever was surely subscribed when a message was accepted has it, and whoever surely was not has it not.
    fn check_changes(&self, found: &Found) {
        let (sent, changes) = (self.sent(), self.changes());
        for one in sent.values() {
            let (Fate::In(receipt), Some(told)) = (&one.fate, one.told) else { continue };
            let Some(topic) = one.line.strip_prefix("topic:") else { continue };
            let number = receipt.history.split('.').nth(1).and_then(|part| part.parse::<i64>().ok());
            let Some((line, _)) = found.lines.get(&one.line) else { continue };
            for number in number.into_iter() {
                for member in (0..self.plan.members).map(super::mesh::member) {
                    let intervals =
                        found.intervals.get(&(*line, member.clone())).cloned().unwrap_or_default();
                    let of_both =
                        changes.iter().filter(|change| change.topic == topic && change.member == member);
                    let Some(should) = should_have(one, told, of_both) else { continue };
                    if has(&intervals, number) != should {
                        let why =
                            format!("{member} should have {number} of {topic}: {should}; {intervals:?}");
                        self.breaks(why);
                    }
                }
            }
        }
    }

    /// An inbox has exactly its interval, in order, but for what was said to be gone and is.
    fn check_reader(&self, found: &Found, reader: &Reader) {
        for line in &reader.lines {
            let (number, intervals) = found.own(reader, line);
            let inbox = lock(&reader.inboxes).get(line).cloned().unwrap_or_default();
            let numbers = lock(&self.numbers);
            for ((_, at), message) in numbers.range((number, 0)..(number, i64::MAX)) {
                let is_own = has(&intervals, *at);
                let came = inbox.came.get(at);
                let is_gone = inbox.gone.iter().any(|(from, oldest)| from < at && at < oldest);
                let is_kept = found.history.contains_key(&(number, *at));
                let who = &reader.name;
                match came {
                    Some(_) if !is_own => {
                        self.breaks(format!("{who} has {at} of {line}, which is not its own"))
                    }
                    Some(other) if other != message => {
                        self.breaks(format!("{who} has {other} as {at} of {line}, and it is {message}"));
                    }
                    None if is_own && is_kept => self.breaks(format!("{who} lacks {at} of {line}")),
                    None if is_own && !is_gone => {
                        self.breaks(format!("{who} lacks {at} of {line}, which is gone, and nobody said so"));
                    }
                    Some(_) | None => {}
                }
            }
            let Some(last) = inbox.came.keys().next_back() else { continue };
            if numbers.range((number, 0)..(number, i64::MAX)).next_back().is_none_or(|((_, at), _)| at < last)
            {
                self.breaks(format!("{} has {last} of {line}, which was never given", reader.name));
            }
        }
    }
}

impl Found {
    fn own(&self, reader: &Reader, line: &str) -> (i64, Vec<Interval>) {
        let name = if line == "direct" { format!("member:{}", reader.member) } else { line.to_owned() };
        let number = self.lines.get(&name).map_or(0, |(line, _)| *line);
        (number, self.intervals.get(&(number, reader.member.clone())).cloned().unwrap_or_default())
    }
}

fn has(intervals: &[Interval], number: i64) -> bool {
    intervals.iter().any(|(since, until)| *since <= number && until.is_none_or(|until| number < until))
}

/// Whether a member surely was subscribed, or surely was not, for the whole time in which this message can have been accepted.
fn should_have<'a>(one: &Sent, told: usize, changes: impl Iterator<Item = &'a Change>) -> Option<bool> {
    let mut is_on = true;
    for change in changes {
        if told < change.asked {
            break;
        }
        match change.told {
            Some(done) if done < one.begun => is_on = change.is_on,
            Some(_) | None => return None,
        }
    }
    Some(is_on)
}
