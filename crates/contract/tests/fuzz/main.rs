//! What strangers write and the contract reads: keys, structured fields and JSON, against other readers of the same.

mod field;
mod item;
mod json;
mod key;
