//! The stores of outbox, relay and broker.

use std::path::Path;
use std::sync::Arc;

use semel_broker::database as broker;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sqlite::{self as relay_file, Sqlite};
use semel_delivery::sqlite::SqliteStore as OutboxFile;
use semel_store::clock::SystemClock;
use semel_store::postgres::Migrations;
use tokio_postgres::NoTls;

use super::{Named, Part, Report};
use crate::exit::{Exit, Stop};
use crate::store::{self, secured};

/// A store in a file of its own.
pub(super) fn in_file(part: Part, path: &str, dry_run: bool) -> Result<Report, Stop> {
    let failed = |error: &dyn std::fmt::Display| {
        let what = "; where another process has it, that one migrates it when it starts: restart it";
        Stop::new(Exit::Io, format!("failed to open the store sqlite:{path}: {error}{what}"))
    };
    let file = Path::new(path);
    if let Some(stop) = store::of_somebody_else(file) {
        return Err(stop);
    }
    let (found, known) = match part {
        Part::Outbox => OutboxFile::version(file).map_err(|error| failed(&error))?,
        Part::Broker => broker::version(file).map_err(|error| failed(&error))?,
        Part::Relay | Part::Gate => relay_file::version(file).map_err(|error| failed(&error))?,
    };
    if found > known {
        return Err(failed(&format!("its schema {found} is of a later release, this one knows {known}")));
    }
    if !dry_run {
        match part {
            Part::Outbox => drop(OutboxFile::open(file).map_err(|error| failed(&error))?),
            Part::Broker => {
                drop(broker::open_file(file, Arc::new(SystemClock)).map_err(|error| failed(&error))?);
            }
            Part::Relay | Part::Gate => {
                drop(Sqlite::open(file, Arc::new(SystemClock)).map_err(|error| failed(&error))?);
            }
        }
    }
    let missing = (found + 1..=known).map(|number| (number, part.name().to_owned())).collect();
    Ok(Report { part, store: format!("sqlite:{path}"), found, known, missing, dry_run })
}

/// The relay's or the broker's schema in PostgreSQL.
pub(super) async fn in_database(url: &str, named: &Named, dry_run: bool) -> Result<Report, Stop> {
    let failed = |error: String| {
        Stop::new(Exit::Unreachable, format!("failed to open the store {}: {error}", named.store))
    };
    let (url, tls) = secured(url, named.ca.as_deref()).map_err(failed)?;
    let is_broker = named.part == Part::Broker;
    let planned = match (&tls, is_broker) {
        (Some(tls), false) => Postgres::migration_plan(&url, tls.clone()).await,
        (None, false) => Postgres::migration_plan(&url, NoTls).await,
        (Some(tls), true) => broker::migration_plan(&url, tls.clone()).await,
        (None, true) => broker::migration_plan(&url, NoTls).await,
    };
    let (found, missing) = planned.map_err(|error| failed(error.to_string()))?;
    if !dry_run {
        let opened = match (tls, is_broker) {
            (Some(tls), false) => Postgres::connect_tls(&url, 1, Migrations::Apply, tls).await,
            (None, false) => Postgres::connect_tls(&url, 1, Migrations::Apply, NoTls).await,
            (Some(tls), true) => broker::connect(&url, 1, Migrations::Apply, tls).await,
            (None, true) => broker::connect(&url, 1, Migrations::Apply, NoTls).await,
        };
        drop(opened.map_err(|error| failed(error.to_string()))?);
    }
    let known = i64::from(missing.last().copied().unwrap_or(found));
    let missing =
        missing.into_iter().map(|number| (i64::from(number), named.part.name().to_owned())).collect();
    let store = named.store.to_string();
    Ok(Report { part: named.part, store, found: i64::from(found), known, missing, dry_run })
}
