//! What everything in one run of the broker shares: the stage, the database, what was sent and told, and who changed what when.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use semel_broker::database;
use semel_delivery::relay::store::sql::{Database, Row, Value};
use semel_delivery::relay::store::sqlite::Sqlite;
use tokio::task::unconstrained;
use tokio::time::sleep;

use crate::broker::plan::{Home, Plan};
use crate::delivery_faults::DeliveryFault;
use crate::plan::Options;
use crate::rng::Rng;
use crate::stage::{Stage, lock};
use crate::way::{Air, Ground};

/// The mesh's name.
pub(super) const MESH: &str = "m";
/// A topic to which nobody is subscribed, and one that is not there.
pub(super) const QUIET: &str = "quiet";
pub(super) const NOWHERE: &str = "nowhere";

/// How far ahead a wall clock may be when the machine starts.
const AHEAD_MILLIS_MAX: i64 = 600_000;

/// What a sender was told first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) message: String,
    pub(super) history: String,
    pub(super) first_seen: String,
}

/// What is known of a message's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nobody was told yet.
    Open,
    /// Its sender was told that it is in.
    In(Receipt),
    /// Its sender was told that it is not, and it can never be.
    Out,
}

/// A message.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) sender: String,
    /// `topic:NAME` or `member:NAME`.
    pub(super) line: String,
    pub(super) body: String,
    pub(super) fate: Fate,
    /// When it was sent first, and when its sender was told, in steps.
    pub(super) begun: usize,
    pub(super) told: Option<usize>,
    /// Whether it was sent before the long pause.
    pub(super) is_old: bool,
}

/// A change of who is subscribed to a topic.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) topic: String,
    pub(super) member: String,
    pub(super) is_on: bool,
    pub(super) asked: usize,
    pub(super) told: Option<usize>,
}

/// What everything in one run of the broker shares.
pub(super) struct Mesh {
    stage: Stage,
    /// What the seed decided.
    pub(super) plan: Plan,
    base: Mutex<Arc<Sqlite>>,
    is_broken: Mutex<bool>,
    air: Air,
    sent: Mutex<BTreeMap<String, Sent>>,
    changes: Mutex<Vec<Change>>,
    /// Every number that was ever given, with its message: line, number, message.
    pub(super) numbers: Mutex<BTreeMap<(i64, i64), String>>,
    pub(super) checked: Mutex<u64>,
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Deref for Mesh {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Ground for Mesh {
    fn strikes(&self, fault: DeliveryFault) -> bool {
        self.happens(self.plan.rates.of(fault), fault.name())
    }

    fn is_shared(&self) -> bool {
        self.plan.home != Home::File
    }

    fn break_file(&self) {
        *lock(&self.is_broken) = true;
    }

    fn is_broken(&self) -> bool {
        *lock(&self.is_broken)
    }

    fn air(&self) -> &Air {
        &self.air
    }
}

impl Mesh {
    /// A mesh without a past.
    pub(super) fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(options, &mut rng);
        let stage = Stage::new(rng);
        stage.clock.start_machine();
        let base = database::memory(Arc::clone(&stage.clock) as _).expect("there is memory for a database");
        let mesh = Self {
            stage,
            plan,
            base: Mutex::new(Arc::new(base)),
            is_broken: Mutex::default(),
            air: Air::default(),
            sent: Mutex::default(),
            changes: Mutex::default(),
            numbers: Mutex::default(),
            checked: Mutex::default(),
        };
        mesh.note(None, mesh.plan.describe());
        mesh
    }

    /// The database itself, without faults.
    pub(super) fn base(&self) -> Arc<Sqlite> {
        Arc::clone(&lock(&self.base))
    }

    /// What the database says now, if nobody holds it.
    pub(super) fn peek(&self, sql: &str, args: Vec<Value>) -> Option<Vec<Row>> {
        let base = self.base();
        let asked = base.read(sql, args);
        unconstrained(asked).now_or_never()?.ok()
    }

    /// The database as a new process finds it. A database that is shared goes on without it.
    pub(super) async fn reopen(&self) -> Arc<Sqlite> {
        *lock(&self.is_broken) = false;
        if !self.is_shared() {
            let image = loop {
                match self.base().image() {
                    Some(image) => break image,
                    None => sleep(Duration::from_millis(1)).await,
                }
            };
            if self.rng(|rng| rng.chance(300)) {
                self.start_machine();
            }
            let opened = database::of_image(&image, Arc::clone(&self.clock) as _);
            *lock(&self.base) = Arc::new(opened.expect("an image can be opened"));
        }
        self.base()
    }

    /// The machine starts anew. Its wall clock is then believed, and so is never wrong by days; by minutes it may be.
    fn start_machine(&self) {
        let (creep, jump) = self.clock.wrong_millis();
        self.clock.set_wrong_millis((creep, jump.min(AHEAD_MILLIS_MAX)));
        self.clock.start_machine();
        self.note(None, "the machine starts anew");
    }

    /// What was sent.
    pub(super) fn sent(&self) -> MutexGuard<'_, BTreeMap<String, Sent>> {
        lock(&self.sent)
    }

    /// Who changed what.
    pub(super) fn changes(&self) -> MutexGuard<'_, Vec<Change>> {
        lock(&self.changes)
    }

    /// Counts what was checked.
    pub(super) fn count_checked(&self) {
        *lock(&self.checked) += 1;
    }
}

/// A member's name. The first one owns the mesh.
pub(super) fn member(number: u64) -> String {
    format!("member-{number}")
}

/// A topic's name.
pub(super) fn topic(number: u64) -> String {
    format!("topic-{number}")
}

/// A member's token.
pub(super) fn token(member: &str) -> String {
    format!("token-of-{member}")
}
