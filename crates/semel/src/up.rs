//! `semel up`: everything in one command.

pub(crate) mod stack;
