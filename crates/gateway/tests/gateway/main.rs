//! The gateway end to end, over real sockets, before services that behave and services that do not.

mod client;
mod framing;
mod identity;
mod outcomes;
mod patience;
mod proxying;
mod secure;
mod upstream;
mod whole;
mod world;
