//! The relay with a virtual clock, a simulated upstream and a database that fails on demand.

mod clocks;
mod crashes;
mod policies;
mod stores;
mod working;
mod world;
