//! Puts ids into a broker's file that it then remembers, so that publishing can be measured beside millions of them. The file was
//! made by a broker, which does not run meanwhile. Only ids: their messages are not there, and nobody reads them.

use clap::ValueEnum;
use semel_store::sqlite::rusqlite::Connection;

/// Ids that one transaction inserts.
const TOGETHER: u64 = 1_000_000;

/// How ids follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Each above the ones before, as ULIDs are.
    Ordered,
    /// Anywhere.
    Random,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The file.
    #[arg(long)]
    store: String,
    /// How many ids.
    #[arg(long)]
    ids: u64,
    #[arg(long, value_enum, default_value = "ordered")]
    order: Order,
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    fill(args).map_err(|error| error.to_string())
}

fn fill(args: &Args) -> semel_store::sqlite::rusqlite::Result<()> {
    let connection = Connection::open(&args.store)?;
    // A file that a loss of power spoils is made again.
    connection
        .execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA temp_store = FILE;")?;
    let id = match args.order {
        Order::Ordered => "printf('0100000000%016d', n)",
        Order::Random => "lower(hex(randomblob(13)))",
    };
    // Random ones are sorted first: one million random pages at a time would take an hour.
    let (together, sorted) = match args.order {
        Order::Ordered => (TOGETHER, ""),
        Order::Random => (args.ids, "ORDER BY id"),
    };
    let sql = format!(
        "INSERT INTO client_message_dedupe (mesh_id, client_message_id, kind, broker_message_id, request_fingerprint,
            fingerprint_version, sender, destination_kind, destination_ref, line, number, epoch, first_seen_at, expires_at)
        SELECT 'bench', id, 'committed', printf('01BENCH%019d', n), randomblob(32), 1, 'm0', 'topic', 't0', 1, n, 1,
            at, at + 7 * 86400000 FROM (
            WITH RECURSIVE numbers (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
            SELECT n, {id} AS id, unixepoch() * 1000 - 3600000 + n / 10 AS at FROM numbers) {sorted}"
    );
    let mut from = 1;
    while from <= args.ids {
        let to = (from + together - 1).min(args.ids);
        connection.execute(&sql, (from.cast_signed(), to.cast_signed()))?;
        from = to + 1;
    }
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
