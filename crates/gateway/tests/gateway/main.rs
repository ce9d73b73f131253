//! The gateway end to end, over real sockets, before services that behave and services that do not.

mod client;
mod cores;
mod framing;
mod fuzzing;
mod identity;
mod outcomes;
mod patience;
mod proxying;
mod secure;
mod streams;
mod strict;
#[cfg(feature = "otel")]
mod traces;
mod upstream;
mod whole;
mod world;
