//! Which engine a run simulates.

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The gate: several replicas on one store.
    Gate,
    /// The outbox: one process on its own file.
    Outbox,
    /// The relay: one process on its own file, or several on one database.
    Relay,
    /// The broker: one process on its own file, or several on one database.
    Broker,
}

impl Part {
    /// Every engine.
    pub const ALL: [Part; 4] = [Part::Gate, Part::Outbox, Part::Relay, Part::Broker];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Gate => "gate",
            Part::Outbox => "outbox",
            Part::Relay => "relay",
            Part::Broker => "broker",
        }
    }

    /// The engine of this name.
    pub fn named(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }

    /// The engine that a seed is played on when nobody chose one.
    pub fn of_seed(seed: u64) -> Part {
        match seed % 4 {
            0 => Part::Relay,
            1 => Part::Gate,
            2 => Part::Outbox,
            _ => Part::Broker,
        }
    }
}
