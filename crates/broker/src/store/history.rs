//! Reads messages: pages of a line, one message, mentions. Changes nothing but what moderation hides.

use std::collections::BTreeMap;

use semel_delivery::relay::store::sql::{Row, StoreError, Value};

use super::{Line, Store, first_int, line_of, time};

/// Lines that are searched by one transaction.
const LINES_AT_ONCE: usize = 64;

/// A message as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) line: i64,
    pub(crate) number: i64,
    pub(crate) broker_message_id: String,
    pub(crate) client_message_id: String,
    pub(crate) sender: String,
    pub(crate) body: Vec<u8>,
    pub(crate) is_json: bool,
    pub(crate) content_type: Option<String>,
    pub(crate) client_tx_id: Option<String>,
    pub(crate) supersedes: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) is_moderated: bool,
}

/// Where a message is that a reader looks for.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) line: Line,
    pub(crate) number: i64,
    pub(crate) broker_message_id: String,
}

/// How far a line is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// The next number.
    pub(crate) head: i64,
    /// How many of its messages were moderated.
    pub(crate) moderated: i64,
    /// The message that has the number that was asked for.
    pub(crate) message: Option<String>,
}

/// What a message has, wherever its body is.
const COLUMNS: &str = "h.line, h.number, h.broker_message_id, m.client_message_id, h.sender, m.body, m.body_kind, \
    m.content_type, m.client_tx_id, m.supersedes, h.created_at, h.moderated_at";

/// The table with the bodies of a kind of lines.
pub(crate) fn bodies_of(kind: &str) -> &'static str {
    if kind == "topic" { "topic_message" } else { "message_queue" }
}

fn stored_of(row: &Row) -> Result<Stored, StoreError> {
    Ok(Stored {
        line: row.int(0)?,
        number: row.int(1)?,
        broker_message_id: row.text(2)?,
        client_message_id: row.text(3)?,
        sender: row.text(4)?,
        body: row.bytes(5)?,
        is_json: row.text(6)? == "json",
        content_type: row.maybe_text(7)?,
        client_tx_id: row.maybe_text(8)?,
        supersedes: row.maybe_text(9)?,
        created_at: row.int(10)?,
        is_moderated: row.maybe_int(11)?.is_some(),
    })
}

impl Store {
    /// Messages of a line after this number, in order.
    pub(crate) async fn page(
        &self,
        line: &Line,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM message_history h JOIN {} m ON m.id = h.broker_message_id \
             WHERE h.line = $1 AND h.number > $2 ORDER BY h.number LIMIT $3",
            bodies_of(&line.kind)
        );
        let rows = self.read(&sql, vec![line.line.into(), after.into(), (limit as i64).into()]).await?;
        rows.iter().map(stored_of).collect()
    }

    /// Messages of any line by their numbers; what is gone is left out.
    pub(crate) async fn messages(&self, at: &[(Line, i64)]) -> Result<Vec<Stored>, StoreError> {
        let mut found = Vec::with_capacity(at.len());
        for (line, number) in at {
            found.extend(
                self.page(line, number - 1, 1).await?.into_iter().filter(|stored| stored.number == *number),
            );
        }
        Ok(found)
    }

    /// The first number of a line that is still kept; the next one where none is.
    pub(crate) async fn oldest(&self, line: &Line) -> Result<i64, StoreError> {
        let sql = "SELECT number FROM message_history WHERE line = $1 ORDER BY number LIMIT 1";
        let rows = self.read(sql, vec![line.line.into()]).await?;
        rows.first().map_or(Ok(line.next_number), |row| row.int(0))
    }

    /// The message that has this number of a line.
    pub(crate) async fn message_id_at(&self, line: i64, number: i64) -> Result<Option<String>, StoreError> {
        let sql = "SELECT broker_message_id FROM message_history WHERE line = $1 AND number = $2";
        let rows = self.read(sql, vec![line.into(), number.into()]).await?;
        rows.first().map(|row| row.text(0)).transpose()
    }

    /// Where a line stands now, and the message that has this number, where it is still kept.
    pub(crate) async fn at(&self, line: i64, number: i64) -> Result<Standing, StoreError> {
        let sql = "SELECT l.next_number, l.moderated, (SELECT h.broker_message_id FROM message_history h \
            WHERE h.line = l.line AND h.number = $2) FROM line l WHERE l.line = $1";
        let rows = self.read(sql, vec![line.into(), number.into()]).await?;
        let standing = |row: &Row| {
            Ok(Standing { head: row.int(0)?, moderated: row.int(1)?, message: row.maybe_text(2)? })
        };
        // A line that is gone has no messages.
        rows.first().map_or(Ok(Standing::default()), standing)
    }

    /// Messages of a line whose moderation has a number above this one, with it, in order.
    pub(crate) async fn moderated_after(
        &self,
        line: &Line,
        after: i64,
        limit: usize,
    ) -> Result<Vec<(i64, Stored)>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS}, h.moderation FROM message_history h JOIN {} m ON m.id = h.broker_message_id \
             WHERE h.line = $1 AND h.moderation > $2 ORDER BY h.moderation LIMIT $3",
            bodies_of(&line.kind)
        );
        let rows = self.read(&sql, vec![line.line.into(), after.into(), (limit as i64).into()]).await?;
        rows.iter().map(|row| Ok((row.int(12)?, stored_of(row)?))).collect()
    }

    /// Where the next number of a line stands now.
    pub(crate) async fn head(&self, line: i64) -> Result<i64, StoreError> {
        first_int(&self.read("SELECT next_number FROM line WHERE line = $1", vec![line.into()]).await?)
    }

    /// The messages that have these numbers of these lines, where they are still kept.
    pub(crate) async fn message_ids(&self, at: &[(i64, i64)]) -> Result<Vec<Option<String>>, StoreError> {
        if at.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT broker_message_id FROM message_history WHERE line = $1 AND number = $2";
        let asked = at.iter().map(|(line, number)| (sql, vec![(*line).into(), (*number).into()]));
        let found = self.db.begin().await?.run_all(asked.collect()).await?;
        found.iter().map(|rows| rows.first().map(|row| row.text(0)).transpose()).collect()
    }

    /// Lines of which anything is, or was, for a member.
    pub(crate) async fn lines_of(&self, mesh: &str, member: &str) -> Result<Vec<Line>, StoreError> {
        let sql = "SELECT l.line, l.kind, l.ref, l.next_number FROM line l WHERE l.mesh_id = $1 AND EXISTS \
            (SELECT 1 FROM topic_subscription s WHERE s.line = l.line AND s.member = $2) ORDER BY l.line";
        let rows = self.read(sql, vec![mesh.into(), member.into()]).await?;
        rows.iter().map(line_of).collect()
    }

    /// Messages that mention a member and that it may read: of each line the first ones after its number, in order.
    pub(crate) async fn mentions(
        &self,
        mesh: &str,
        member: &str,
        after: &BTreeMap<i64, i64>,
        limit: usize,
    ) -> Result<Vec<Place>, StoreError> {
        let mut args: Vec<Value> = vec![mesh.into(), member.into(), (limit as i64).into()];
        let mut cases = String::new();
        for (line, number) in after {
            args.extend([Value::from(*line), Value::from(*number)]);
            cases.push_str(&format!(" WHEN ${} THEN CAST(${} AS bigint)", args.len() - 1, args.len()));
        }
        let after = match cases.as_str() {
            "" => "0".to_owned(),
            cases => format!("CASE i.line{cases} ELSE 0 END"),
        };
        let sql = format!(
            "SELECT line, kind, ref, next_number, number, broker_message_id FROM (SELECT l.line, l.kind, l.ref, \
             l.next_number, i.number, i.broker_message_id, row_number() OVER (PARTITION BY i.line ORDER BY i.number) AS place \
             FROM mention_index i JOIN line l ON l.line = i.line WHERE i.mesh_id = $1 AND i.mentioned = $2 \
             AND i.number > {after} AND EXISTS (SELECT 1 FROM topic_subscription s WHERE s.line = i.line AND s.member = $2 \
             AND s.since <= i.number AND (s.until IS NULL OR s.until > i.number))) AS own WHERE place <= $3 \
             ORDER BY line, number"
        );
        let rows = self.read(&sql, args).await?;
        let place = |row: &Row| {
            Ok(Place { line: line_of(row)?, number: row.int(4)?, broker_message_id: row.text(5)? })
        };
        rows.iter().map(place).collect()
    }

    /// Messages that have all of these words and that a member may read: of each of these lines the first ones after its
    /// number, in order.
    pub(crate) async fn search(
        &self,
        (mesh, member): (&str, &str),
        words: &[String],
        lines: &[(&Line, i64)],
        limit: usize,
    ) -> Result<Vec<Place>, StoreError> {
        let Some((first, others)) = words.split_first() else { return Ok(Vec::new()) };
        let has_others: Vec<String> = (7..7 + others.len())
            .map(|at| {
                format!(
                    " AND EXISTS (SELECT 1 FROM search_word o WHERE o.mesh_id = $1 AND o.word = ${at} \
                     AND o.line = w.line AND o.number = w.number)"
                )
            })
            .collect();
        let sql = format!(
            "SELECT w.number, w.broker_message_id FROM search_word w \
             JOIN message_history h ON h.line = w.line AND h.number = w.number \
             WHERE w.mesh_id = $1 AND w.word = $2 AND w.line = $3 AND w.number > $4 AND h.moderated_at IS NULL \
             AND EXISTS (SELECT 1 FROM topic_subscription s WHERE s.line = w.line AND s.member = $5 \
             AND s.since <= w.number AND (s.until IS NULL OR s.until > w.number)){} ORDER BY w.number LIMIT $6",
            has_others.concat()
        );
        let asked = lines.iter().map(|(line, after)| {
            let mut args: Vec<Value> = vec![mesh.into(), first.into(), line.line.into(), (*after).into()];
            args.extend([member.into(), (limit as i64).into()]);
            args.extend(others.iter().map(Value::from));
            (sql.as_str(), args)
        });
        let asked: Vec<_> = asked.collect();
        let mut found = Vec::new();
        for (some, of) in asked.chunks(LINES_AT_ONCE).zip(lines.chunks(LINES_AT_ONCE)) {
            // Where one process owns the database, reading holds up no transaction.
            let rows = match self.db.is_owned() {
                true => {
                    let mut rows = Vec::with_capacity(some.len());
                    for (sql, args) in some {
                        rows.push(self.read(sql, args.clone()).await?);
                    }
                    rows
                }
                false => self.db.begin().await?.run_all(some.to_vec()).await?,
            };
            for ((line, _), rows) in of.iter().zip(rows) {
                let place = |row: &Row| {
                    let (number, broker_message_id) = (row.int(0)?, row.text(1)?);
                    Ok(Place { line: (*line).clone(), number, broker_message_id })
                };
                found.extend(rows.iter().map(place).collect::<Result<Vec<_>, StoreError>>()?);
            }
        }
        Ok(found)
    }

    /// Hides the body of a message from readers, and notes who did. Its id stays committed. Says whether there is such a message.
    ///
    /// After: no page and no stream shows the body. Crash: hidden or not; asked again, it is.
    pub(crate) async fn moderate(
        &self,
        (line, number): (i64, i64),
        (mesh, id): (&str, &str),
        (who, why): (&str, &str),
    ) -> Result<bool, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        // The line before its messages, as a sweep does: it counts its moderations.
        tx.run("SELECT line FROM line WHERE line = $1 /*LOCK*/", vec![line.into()]).await?;
        let sql = "UPDATE message_history SET moderated_at = coalesce(moderated_at, $3), moderated_why = $4 \
            WHERE line = $1 AND number = $2 RETURNING number";
        let found = tx.run(sql, vec![line.into(), number.into(), now.into(), why.into()]).await?;
        let noted = "INSERT INTO audit_log (line, number, event, broker_message_id, mesh_id, sender, at, detail) \
            SELECT h.line, h.number, 'moderated', h.broker_message_id, h.mesh_id, CAST($4 AS text), CAST($3 AS bigint), \
            CAST($5 AS text) FROM message_history h WHERE h.line = $1 AND h.number = $2 ON CONFLICT DO NOTHING";
        tx.run(noted, vec![line.into(), number.into(), now.into(), who.into(), why.into()]).await?;
        let words = "DELETE FROM search_word WHERE line = $1 AND number = $2";
        tx.run(words, vec![line.into(), number.into()]).await?;
        if !found.is_empty() {
            self.note(&mut tx, ("moderate", mesh, id, "")).await?;
        }
        tx.commit().await?;
        Ok(!found.is_empty())
    }
}
