//! A contestant as data: what serves, what is sent to it, and what it does to be durable.

/// What stands where requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// The service behind all proxies, alone.
    Upstream,
    Nginx,
    /// A reverse proxy on hyper that does nothing else.
    PlainProxy,
    /// `semel serve gate` on a store of its own.
    Gate(Store),
    /// Two of them on one PostgreSQL.
    TwoGates,
}

/// Where a gate keeps its records.
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
}

impl Contestant {
    pub(crate) const fn new(name: &'static str, serves: Serves, sends: Sends) -> Contestant {
        Contestant { name, serves, sends, connections: 64 }
    }

    /// What is on disk before the client has its answer.
    pub(crate) fn durability(&self) -> &'static str {
        match (self.serves, self.sends) {
            (Serves::Upstream | Serves::Nginx | Serves::PlainProxy, _) | (_, Sends::Unkeyed) => {
                "keeps nothing"
            }
            (_, Sends::Replays) => "reads only",
            (Serves::Gate(Store::Sqlite), _) => "claim and answer synced (SQLite, synchronous=FULL)",
            (Serves::Gate(Store::Postgres) | Serves::TwoGates, _) => {
                "claim and answer synced (PostgreSQL, fsync and synchronous_commit on)"
            }
        }
    }
}
