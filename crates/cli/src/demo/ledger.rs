//! What the demo shop has sold, in SQLite: in a file, or in memory. Every order that is taken is kept.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_store::sqlite::rusqlite::{self, Connection, OptionalExtension, Row};
use serde::Serialize;

/// What the customer can spend at first.
const OPENING_BALANCE: i64 = 100_000;
/// Orders in a list.
const LISTED_MAX: i64 = 1000;
/// Longest name of an item.
pub(crate) const ITEM_BYTES_MAX: usize = 200;

pub(crate) type LedgerError = rusqlite::Error;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id INTEGER PRIMARY KEY, item TEXT NOT NULL, amount INTEGER NOT NULL, balance INTEGER NOT NULL)";
const LATEST: &str = "SELECT balance FROM orders ORDER BY id DESC LIMIT 1";

/// The shop's book.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Connection>);

/// An order that was taken, and what was left after it.
#[derive(Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) item: String,
    pub(crate) amount: i64,
    pub(crate) balance: i64,
}

/// What became of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Totals {
    /// Orders that were taken.
    pub(crate) orders: i64,
    /// What is left to spend.
    pub(crate) balance: i64,
    /// What was spent.
    pub(crate) spent: i64,
}

impl Ledger {
    /// Opens a file, or creates it; without one, a book that ends with the program.
    pub(crate) fn open(file: Option<&Path>) -> Result<Self, LedgerError> {
        let connection = match file {
            Some(path) => {
                let connection = Connection::open(path)?;
                connection.pragma_update(None, "journal_mode", "WAL")?;
                connection
            }
            None => Connection::open_in_memory()?,
        };
        connection.execute(SCHEMA, [])?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Takes an order and debits the balance. Once this returns, a restart finds it.
    pub(crate) fn order(&self, item: &str, amount: i64) -> Result<Order, LedgerError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let before = transaction.query_row(LATEST, [], |row| row.get(0)).optional()?;
        let balance = before.unwrap_or(OPENING_BALANCE).saturating_sub(amount);
        let insert = "INSERT INTO orders (item, amount, balance) VALUES (?1, ?2, ?3)";
        transaction.execute(insert, (item, amount, balance))?;
        let id = transaction.last_insert_rowid();
        transaction.commit()?;
        Ok(Order { id, item: item.to_owned(), amount, balance })
    }

    /// The latest orders, latest first.
    pub(crate) fn orders(&self) -> Result<Vec<Order>, LedgerError> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT id, item, amount, balance FROM orders ORDER BY id DESC LIMIT ?1")?;
        statement.query_map([LISTED_MAX], order)?.collect()
    }

    /// One order.
    pub(crate) fn one(&self, id: i64) -> Result<Option<Order>, LedgerError> {
        let select = "SELECT id, item, amount, balance FROM orders WHERE id = ?1";
        self.lock().query_row(select, [id], order).optional()
    }

    /// What became of everything.
    pub(crate) fn totals(&self) -> Result<Totals, LedgerError> {
        let connection = self.lock();
        let orders = connection.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
        let balance = connection.query_row(LATEST, [], |row| row.get(0)).optional()?;
        let balance = balance.unwrap_or(OPENING_BALANCE);
        Ok(Totals { orders, balance, spent: OPENING_BALANCE.saturating_sub(balance) })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Nothing that panics runs under this lock, and SQLite keeps its own house.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn order(row: &Row<'_>) -> Result<Order, LedgerError> {
    Ok(Order { id: row.get(0)?, item: row.get(1)?, amount: row.get(2)?, balance: row.get(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_debits_the_balance_and_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shop.db");
        let ledger = Ledger::open(Some(&file)).unwrap();
        assert_eq!(ledger.totals().unwrap(), Totals { orders: 0, balance: OPENING_BALANCE, spent: 0 });
        ledger.order("tea", 5).unwrap();
        ledger.order("tea", 5).unwrap();
        drop(ledger);
        let ledger = Ledger::open(Some(&file)).unwrap();
        let expected = Totals { orders: 2, balance: OPENING_BALANCE - 10, spent: 10 };
        assert_eq!(ledger.totals().unwrap(), expected);
        assert_eq!(ledger.orders().unwrap()[0].id, 2, "the latest comes first");
        assert!(ledger.one(3).unwrap().is_none());
    }
}
