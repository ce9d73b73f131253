//! Those who publish by the daemons of a mesh, and what must have come of it: every message that a daemon accepted is in the inbox of
//! everybody it is for, once, in the order of its line, and the same order for all; nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::mesh::{MEMBERS, Mesh, TOPICS};
use super::random::Random;
use super::verdict::Row;

/// How many publish at a time.
const PUBLISHERS: u64 = 4;
/// One message in so many is for one member alone.
const DIRECT_ONE_IN: u64 = 4;
/// Messages on a page of an inbox.
const PAGE: usize = 1000;
/// How often it is looked whether everything has come.
const LOOK: Duration = Duration::from_millis(500);
/// How many broken promises are shown.
const LINES: usize = 20;

/// A message, and whether a daemon said that it has it.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    id: String,
    /// `topic:NAME`, or `direct` to this member.
    line: String,
    to: Option<usize>,
    is_accepted: bool,
}

/// The publishers, at work.
pub(crate) struct Posts {
    threads: Vec<JoinHandle<Vec<Post>>>,
    ports: Vec<u16>,
}

/// A message in an inbox.
#[derive(Clone, Debug)]
struct Came {
    id: String,
    line: String,
    number: i64,
}

impl Posts {
    pub(crate) fn start(ports: &[u16], stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let publisher = |number: u64| {
            let (ports, stop) = (ports.to_vec(), Arc::clone(stop));
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(131) + number);
                let mut posts = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    posts.push(publish(&ports, &stop, &mut random));
                    thread::sleep(Duration::from_millis(10 + random.below(40)));
                }
                posts
            })
        };
        Self { threads: (0..PUBLISHERS).map(publisher).collect(), ports: ports.to_vec() }
    }

    /// Waits until every inbox has what is its own, and judges.
    pub(crate) fn judge(self, mesh: &Mesh, until: Instant) -> Vec<Row> {
        let posts: Vec<Post> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let mut inboxes = Vec::new();
        while Instant::now() < until {
            inboxes = (0..MEMBERS.len()).map(|member| inbox(&self.ports, member)).collect();
            let lacks = |(member, inbox): (usize, &Vec<Came>)| !lacking(&posts, member, inbox).is_empty();
            if !inboxes.iter().enumerate().any(lacks) && open(&self.ports) == Some(0) {
                break;
            }
            thread::sleep(LOOK);
        }
        let orphans = mesh.operate("POST", "/v1/orphans").and_then(|answer| {
            let told: Value = serde_json::from_str(&answer.body).ok()?;
            usize::try_from(told["orphans"].as_u64()?).ok()
        });
        let mut rows = judged(&posts, &inboxes);
        rows.push(Row::promise(
            "published messages that a daemon still holds",
            open(&self.ports).unwrap_or(1),
        ));
        rows.push(Row::promise("rows of the broker without the others", orphans.unwrap_or(1)));
        rows
    }
}

fn publish(ports: &[u16], stop: &AtomicBool, random: &mut Random) -> Post {
    let member = |random: &mut Random| usize::try_from(random.below(MEMBERS.len() as u64)).unwrap_or(0);
    let (id, by) = (random.uuid(), member(random));
    let (line, to, destination) = match random.below(DIRECT_ONE_IN) {
        0 => {
            let to = member(random);
            ("direct".to_owned(), Some(to), json!({"member": MEMBERS[to]}))
        }
        _ => {
            let topic = TOPICS[usize::try_from(random.below(TOPICS.len() as u64)).unwrap_or(0)];
            (format!("topic:{topic}"), None, json!({"topic": topic}))
        }
    };
    let body = json!({"client_message_id": id, "to": destination, "body": {"id": id}}).to_string();
    let since = Instant::now();
    let is_accepted = loop {
        let told = Mesh::ask(ports, by, "POST", "/v1/send", &body);
        if told.is_some_and(|answer| matches!(answer.status, 200 | 202)) {
            break true;
        }
        if stop.load(Ordering::SeqCst) && since.elapsed() > Duration::from_secs(3) {
            break false;
        }
        thread::sleep(Duration::from_millis(50));
    };
    Post { id, line, to, is_accepted }
}

/// All that a member's daemon has received, in the order of arrival.
fn inbox(ports: &[u16], member: usize) -> Vec<Came> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/v1/inbox?limit={PAGE}&after={after}");
        let page = Mesh::ask(ports, member, "GET", &path, "").filter(|answer| answer.status == 200);
        let Some(page) = page.and_then(|answer| serde_json::from_str::<Value>(&answer.body).ok()) else {
            return Vec::new();
        };
        found.extend(page["messages"].as_array().into_iter().flatten().map(came));
        match page["next_after"].as_i64() {
            Some(next) => after = next,
            None => return found,
        }
    }
}

fn came(message: &Value) -> Came {
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let number = text("event_id").split('.').nth(1).and_then(|number| number.parse().ok());
    Came { id: text("id"), line: text("line"), number: number.unwrap_or(0) }
}

/// How many messages the daemons have not delivered; nothing where one does not answer.
fn open(ports: &[u16]) -> Option<usize> {
    let mut open = 0;
    for member in 0..MEMBERS.len() {
        for state in ["pending", "inflight", "held", "dead"] {
            let answer =
                Mesh::ask(ports, member, "GET", &format!("/v1/messages?state={state}&limit=1000"), "")?;
            let told: Value = serde_json::from_str(&answer.body).ok()?;
            open += told["messages"].as_array()?.len();
        }
    }
    Some(open)
}

fn is_for(post: &Post, member: usize) -> bool {
    post.to.is_none_or(|to| to == member)
}

/// What a member should have and has not.
fn lacking<'a>(posts: &'a [Post], member: usize, inbox: &[Came]) -> Vec<&'a Post> {
    let has: BTreeSet<&str> = inbox.iter().map(|came| came.id.as_str()).collect();
    let own = posts.iter().filter(|post| post.is_accepted && is_for(post, member));
    own.filter(|post| !has.contains(post.id.as_str())).collect()
}

fn judged(posts: &[Post], inboxes: &[Vec<Came>]) -> Vec<Row> {
    let by_id: BTreeMap<&str, &Post> = posts.iter().map(|post| (post.id.as_str(), post)).collect();
    let (mut lost, mut twice, mut foreign, mut disordered) = (vec![], vec![], vec![], vec![]);
    let mut places: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for (member, inbox) in inboxes.iter().enumerate() {
        let who = MEMBERS[member];
        lost.extend(lacking(posts, member, inbox).into_iter().map(|post| format!("{who} lacks {post:?}")));
        let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
        for came in inbox {
            if !seen.insert(&came.id) {
                twice.push(format!("{who} has {came:?} twice"));
            }
            let is_own = |post: &&Post| is_for(post, member) && post.line == came.line;
            if by_id.get(came.id.as_str()).copied().filter(|post| is_own(post)).is_none() {
                foreign.push(format!("{who} has {came:?}"));
            }
            let before = last.insert(&came.line, came.number).unwrap_or(0);
            // A topic's numbers are the same for everybody.
            let place = (came.line.as_str(), came.number);
            let is_topic = came.line.starts_with("topic:");
            let is_other = is_topic && *places.entry(place).or_insert(&came.id) != came.id;
            if before >= came.number || is_other {
                disordered.push(format!("{who} has {came:?} after {before}"));
            }
        }
    }
    let all = [&lost, &twice, &foreign, &disordered];
    for line in all.into_iter().flatten().take(LINES) {
        eprintln!("xtask: {line}");
    }
    vec![
        Row::count("messages accepted for the mesh", posts.iter().filter(|post| post.is_accepted).count()),
        Row::count("messages in the inboxes of its members", inboxes.iter().map(Vec::len).sum()),
        Row::promise("messages of the mesh that an inbox lacks", lost.len()),
        Row::promise("messages of the mesh that an inbox has twice", twice.len()),
        Row::promise("messages in an inbox that nobody sent there", foreign.len()),
        Row::promise("messages of the mesh out of their order", disordered.len()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(id: &str, line: &str, to: Option<usize>) -> Post {
        Post { id: id.to_owned(), line: line.to_owned(), to, is_accepted: true }
    }

    fn came(id: &str, line: &str, number: i64) -> Came {
        Came { id: id.to_owned(), line: line.to_owned(), number }
    }

    #[test]
    fn every_inbox_is_held_against_what_was_accepted() {
        let posts =
            [post("a", "topic:news", None), post("b", "topic:news", None), post("c", "direct", Some(1))];
        let [a, b] = [came("a", "topic:news", 1), came("b", "topic:news", 2)];
        let c = came("c", "direct", 1);
        let broken = |one: &[&Came], two: &[&Came]| -> Vec<String> {
            let inboxes: [Vec<Came>; 2] =
                [one, two].map(|inbox| inbox.iter().map(|came| (*came).clone()).collect());
            judged(&posts, &inboxes).iter().filter_map(Row::broken).collect()
        };
        assert_eq!(broken(&[&a, &b], &[&c, &a, &b]), [""; 0]);
        let wrong = came("b", "topic:news", 1);
        for (one, two, word) in [
            (vec![&a], vec![&a, &b, &c], "lacks"),
            (vec![&a, &b, &b], vec![&a, &b, &c], "twice"),
            (vec![&a, &b, &c], vec![&a, &b, &c], "nobody sent"),
            (vec![&b, &a], vec![&a, &b, &c], "order"),
            (vec![&a, &b], vec![&wrong, &a, &c], "order"),
        ] {
            let found = broken(&one, &two);
            assert!(found.iter().any(|why| why.contains(word)), "{word}: {found:?}");
        }
    }
}
