//! The claim store on PostgreSQL.
