//! The claim store on SQLite.
