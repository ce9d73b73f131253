//! What the relay asks of a database: transactions of plain statements. The statements are the same for every database;
//! `$1` is an argument, and `/*LOCK*/` after a SELECT locks its rows where a database locks rows.
//! [`NOW`], a statement of its own, is answered with the store's time, which no jump of a clock moves, and `/*HURRY*/` stands in [`HURRY`].
//! `/*ALONE*/` before a condition waits until no other transaction has said the same `$1` there, where several run at once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A value of a row, or an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A number.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Value::Text(value.clone())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Text(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Value::Bytes(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// A number of this row.
    pub fn int(&self, at: usize) -> Result<i64, StoreError> {
        self.maybe_int(at)?.ok_or_else(|| self.unexpected(at))
    }

    /// A number, where there is one.
    pub fn maybe_int(&self, at: usize) -> Result<Option<i64>, StoreError> {
        match self.0.get(at) {
            Some(Value::Int(value)) => Ok(Some(*value)),
            Some(Value::Null) => Ok(None),
            Some(Value::Text(_) | Value::Bytes(_)) | None => Err(self.unexpected(at)),
        }
    }

    /// Text of this row.
    pub fn text(&self, at: usize) -> Result<String, StoreError> {
        self.maybe_text(at)?.ok_or_else(|| self.unexpected(at))
    }

    /// Text, where there is some.
    pub fn maybe_text(&self, at: usize) -> Result<Option<String>, StoreError> {
        match self.0.get(at) {
            Some(Value::Text(value)) => Ok(Some(value.clone())),
            Some(Value::Null) => Ok(None),
            Some(Value::Int(_) | Value::Bytes(_)) | None => Err(self.unexpected(at)),
        }
    }

    /// Bytes of this row.
    pub fn bytes(&self, at: usize) -> Result<Vec<u8>, StoreError> {
        match self.0.get(at) {
            Some(Value::Bytes(value)) => Ok(value.clone()),
            Some(Value::Null | Value::Int(_) | Value::Text(_)) | None => Err(self.unexpected(at)),
        }
    }

    fn unexpected(&self, at: usize) -> StoreError {
        StoreError::Failed(format!("column {at} of a row is not what was expected"))
    }
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Nothing was changed.
    Failed(String),
    /// Whether it was committed is not known.
    Unknown(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Failed(why) => write!(f, "the store could not do it: {why}"),
            StoreError::Unknown(why) => write!(f, "the store may or may not have done it: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// A statement that tells the store's time in milliseconds.
pub const NOW: &str = "SELECT /*NOW*/";

/// A statement after which nothing of this transaction waits long for what another one has locked: it fails instead.
pub const HURRY: &str = "SELECT /*HURRY*/ 1";

/// What a database promises.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What is done with what other processes say.
pub type Heard = Arc<dyn Fn(&str) + Send + Sync>;

/// What goes on until it is dropped.
pub type Listening<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A transaction. Dropped without [`Transaction::commit`] it changes nothing.
pub trait Transaction: Send {
    /// Runs one statement.
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>>;

    /// Runs several statements, none of which needs to know what another one found, without waiting in between. What one of
    /// them locks is locked when the next one looks.
    fn run_all<'a>(&'a mut self, statements: Vec<(&'a str, Vec<Value>)>) -> Asked<'a, Vec<Vec<Row>>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(statements.len());
            for (sql, args) in statements {
                found.push(self.run(sql, args).await?);
            }
            Ok(found)
        })
    }

    /// Runs one `INSERT … VALUES ($1, …)` for each of these rows, in their order, and says what they return.
    fn run_each<'a>(&'a mut self, sql: &'a str, rows: Vec<Vec<Value>>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for row in rows {
                found.extend(self.run(sql, row).await?);
            }
            Ok(found)
        })
    }

    /// A person says that the clock is right: from the commit on it is believed.
    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Commits. `Failed`: nothing was changed; `Unknown`: nobody can say.
    fn commit(self: Box<Self>) -> Asked<'static, ()>;
}

/// A database.
pub trait Database: Send + Sync + 'static {
    /// Begins a transaction that may write.
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>>;

    /// Reads by one statement, outside any transaction.
    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            let mut tx = self.begin().await?;
            tx.run(sql, args).await
        })
    }

    /// The store's time in milliseconds, which never goes back.
    fn now(&self) -> Asked<'_, i64>;

    /// Whether one process owns it, so that at its start nobody else holds anything.
    fn is_owned(&self) -> bool;

    /// Says something to the other processes that share it. Only a hint: it may be lost.
    fn say<'a>(&'a self, _channel: &'static str, _text: &'a str) -> Asked<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Hears what is said on a channel, by this process too. `heard` is also called, with nothing, when something may have been
    /// missed. Where nobody can be heard it waits for ever.
    fn listen(&self, _channel: &'static str, _heard: Heard) -> Listening<'_> {
        Box::pin(std::future::pending())
    }

    /// Whether it can serve. Otherwise it recovers by itself.
    fn ready(&self) -> Asked<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// By how many milliseconds the clock is ahead of the time that is given, while nobody believes it, as far as was heard when
    /// the time was last asked for. Then nothing expires.
    fn clock_ahead(&self) -> i64 {
        0
    }
}
