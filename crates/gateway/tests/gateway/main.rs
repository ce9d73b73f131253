//! The gateway end to end, over real sockets, before services that behave and services that do not.

mod framing;
mod outcomes;
mod proxying;
mod upstream;
mod world;
