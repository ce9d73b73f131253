//! `semel serve relay` and `semel relay` as users run them: the real program before a stand-in for a score service.

mod accepting;
mod failing;
mod operating;
mod refusing;
mod reloading;
mod world;
