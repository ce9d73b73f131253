//! A mesh from outside: a broker and the daemons of its members as real processes, their commands, and what `kill -9` does to
//! them.

mod acceptance;
mod kills;
mod receiving;
mod world;
