//! Damage to one cell of a SQLite file, chosen by an input, and its mending. Knows no schema: it looks up which tables and
//! columns there are, so that it holds for every layout. What the schema itself refuses is no damage.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, Result, params_from_iter};

/// Bytes of an input that choose the cell and the type of its new value; the rest is the value.
const CHOICE_BYTES: usize = 4;

/// The tables of a file as they were, and a connection to change them.
#[derive(Debug)]
pub struct Cells {
    connection: Connection,
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// What an input did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// There is nothing to change, or the schema refuses the value.
    Refused,
    /// The cell has another value now.
    Done {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The type of the new value.
        kind: &'static str,
        /// Whether the value is the one that was there.
        is_same: bool,
    },
}

impl Cells {
    /// Copies the tables of a file whose names this accepts.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn of(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update(None, "foreign_keys", "OFF")?;
        let names: Vec<String> = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_>>()?;
        let mut tables = Vec::new();
        for name in names.into_iter().filter(|name| !name.starts_with("sqlite_") && wanted(name)) {
            let mut statement = connection.prepare(&format!("SELECT * FROM \"{name}\""))?;
            let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let width = columns.len();
            let read =
                |row: &rusqlite::Row<'_>| (0..width).map(|at| row.get(at)).collect::<Result<Vec<Value>>>();
            let rows: Vec<Vec<Value>> = statement.query_map([], read)?.collect::<Result<_>>()?;
            if !rows.is_empty() {
                tables.push(Table { name, columns, rows });
            }
        }
        Ok(Self { connection, tables })
    }

    /// Changes one cell. [`Cells::mend`] takes it back.
    pub fn damage(&mut self, input: &[u8]) -> Damage {
        let Some((choice, value)) = input.split_first_chunk::<CHOICE_BYTES>() else { return Damage::Refused };
        let [table, row, column, kind] = choice.map(usize::from);
        let Some(table) = self.tables.get(table % self.tables.len().max(1)) else { return Damage::Refused };
        let (row, column) = (row % table.rows.len(), column % table.columns.len());
        let (kind, value) = value_of(kind, value);
        let is_same = table.rows[row][column] == value;
        let mut rows = table.rows.clone();
        rows[row][column] = value;
        match write(&mut self.connection, table, &rows) {
            Ok(()) => Damage::Done {
                table: table.name.clone(),
                column: table.columns[column].clone(),
                kind,
                is_same,
            },
            Err(_) => Damage::Refused,
        }
    }

    /// Everything is as it was.
    ///
    /// # Panics
    /// The file cannot be written any more.
    pub fn mend(&mut self) {
        for table in &self.tables {
            write(&mut self.connection, table, &table.rows).expect("what was there can be written again");
        }
    }
}

fn value_of(kind: usize, bytes: &[u8]) -> (&'static str, Value) {
    let mut eight = [0; 8];
    for (to, from) in eight.iter_mut().zip(bytes) {
        *to = *from;
    }
    match kind % 6 {
        0 => ("null", Value::Null),
        1 => ("small", Value::Integer(i64::from(i8::from_be_bytes([eight[0]])))),
        2 => ("integer", Value::Integer(i64::from_be_bytes(eight))),
        3 => ("real", Value::Real(f64::from_be_bytes(eight))),
        4 => ("text", Value::Text(String::from_utf8_lossy(bytes).into_owned())),
        _ => ("blob", Value::Blob(bytes.to_vec())),
    }
}

fn write(connection: &mut Connection, table: &Table, rows: &[Vec<Value>]) -> Result<()> {
    let transaction = connection.transaction()?;
    transaction.prepare_cached(&format!("DELETE FROM \"{}\"", table.name))?.execute([])?;
    let columns: Vec<String> = table.columns.iter().map(|column| format!("\"{column}\"")).collect();
    let places = vec!["?"; columns.len()].join(", ");
    let sql = format!("INSERT INTO \"{}\" ({}) VALUES ({places})", table.name, columns.join(", "));
    for row in rows {
        transaction.prepare_cached(&sql)?.execute(params_from_iter(row))?;
    }
    transaction.commit()
}
