//! `semel serve gate` as users run it: the real program, killed and signalled, before services of every kind.

mod changes;
#[path = "../../../gateway/tests/gateway/client.rs"]
#[allow(dead_code)]
mod client;
mod ends;
mod process;
mod settings;
mod starts;
mod storms;
#[path = "../../../gateway/tests/gateway/upstream.rs"]
#[allow(dead_code)]
mod upstream;
