//! A contestant as data: what serves, what is sent to it, and what it does to be durable.

/// What stands where requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    Nginx,
    /// A reverse proxy on hyper that does nothing else.
    PlainProxy,
    /// `semel serve gate` with nothing set but its upstream and a store of its own, which already holds so many records.
    Gate(Store, u64),
    /// Two of them on one PostgreSQL.
    TwoGates,
    /// A handler in process, without storage or with the layer around it and its row in the record's commit.
    Service(Option<Store>),
    /// The same handler and its transaction on PostgreSQL, without semel.
    ServiceAlone,
    /// `semel serve outbox`, whose lane is paused: it accepts and does not send.
    Outbox,
    /// What accepting costs without a disk.
    AcceptInMemory,
    /// `semel serve relay`, which accepts and waits for company.
    Relay(Store),
    /// A handler in process behind the crate `axum-idempotent`, on PostgreSQL.
    AxumIdempotent,
    /// The crate `idempotent-proxy-server` with Redis.
    IdempotentProxy,
    /// Restate's server with a plain handler.
    Restate,
}

/// What stands where messages are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// `semel serve broker` with so many subscribers of each of so many topics.
    Broker { store: Store, subscribers: usize, topics: usize },
    /// The same on SQLite with one of each, and with so many ids that it remembers: ordered, or random ones.
    Remembering { ids: u64, order: &'static str },
    /// `semel serve outbox`, whose lane is paused.
    Outbox,
    /// JetStream with a file that is synced before each answer.
    Jetstream,
    /// Redis Streams with a log that is synced before each answer.
    Streams,
}

/// Where records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Postgres,
}

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sends {
    /// No key.
    Unkeyed,
    /// A random key of its own on every request.
    Fresh,
    /// A key of its own on every request, each above the one before.
    Ordered,
    /// Keys that were answered before, each once before any again.
    Replays,
    /// Fresh keys, one in ten sent a second time while in flight.
    Storm,
    /// Fresh keys at half of the rate that another contestant reached, on a clock of their own.
    HalfOf(&'static str),
}

/// One line of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) serves: Serves,
    pub(crate) sends: Sends,
    pub(crate) connections: usize,
    /// Requests at a time on each connection, sent by hyper: one on HTTP/1.1, more on HTTP/2. Zero is the lean generator.
    pub(crate) streams: usize,
}

impl Contestant {
    pub(crate) const fn new(name: &'static str, serves: Serves, sends: Sends) -> Contestant {
        Contestant { name, serves, sends, connections: 64, streams: 0 }
    }

    /// The same with another number of connections.
    pub(crate) const fn over(self, connections: usize) -> Contestant {
        Contestant { connections, ..self }
    }

    /// The same by hyper's client, with so many requests at a time on each of so many connections.
    pub(crate) const fn by_hyper(self, connections: usize, streams: usize) -> Contestant {
        Contestant { connections, streams, ..self }
    }

    /// What is on disk before the client has its answer.
    pub(crate) fn durability(&self) -> &'static str {
        const POSTGRES: &str = "claim and answer synced (PostgreSQL, fsync and synchronous_commit on)";
        match (self.serves, self.sends) {
            (Serves::Nginx | Serves::PlainProxy | Serves::Service(None) | Serves::AcceptInMemory, _)
            | (Serves::Gate(..) | Serves::TwoGates, Sends::Unkeyed) => "keeps nothing",
            (Serves::Gate(..), Sends::Replays) => "reads only",
            (Serves::Gate(Store::Sqlite, _), _) => "claim and answer synced (SQLite, synchronous=FULL)",
            (Serves::Gate(Store::Postgres, _) | Serves::TwoGates, _) => POSTGRES,
            (Serves::Service(_), Sends::Replays) => "reads only",
            (Serves::ServiceAlone, _) => "row synced (PostgreSQL)",
            (Serves::Service(Some(Store::Sqlite)), _) => {
                "row, record and answer synced in one commit (SQLite)"
            }
            (Serves::Service(Some(Store::Postgres)), _) => {
                "row, record and answer synced in one commit (PostgreSQL)"
            }
            (Serves::Outbox, _) => "message synced (SQLite, synchronous=FULL)",
            (Serves::Relay(Store::Sqlite), _) => "entry synced (SQLite, synchronous=FULL)",
            (Serves::Relay(Store::Postgres), _) => "entry synced (PostgreSQL)",
            (Serves::AxumIdempotent, _) => {
                "answer synced (PostgreSQL); takes no claim: duplicates in flight both run"
            }
            (Serves::IdempotentProxy, _) => "not durable: Redis without a log",
            (Serves::Restate, _) => "its own log, as it comes",
        }
    }
}
