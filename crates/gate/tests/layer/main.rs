//! The layer around an axum service, on the store in memory: what a client sees, and how often the handler runs.

mod building;
mod changes;
mod counted;
mod guards;
mod identity;
mod keys;
mod outcomes;
mod replays;
mod restores;
mod running;
mod waiting;
mod whole;
mod world;
