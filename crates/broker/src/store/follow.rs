//! What follows the commits and may lag behind them: the words of the search index, the audit log, the telemetry of rates. All
//! of it can be made again from the history. Each line is followed in one transaction with how far it was followed, so that
//! nothing is counted twice.

use std::collections::{BTreeMap, BTreeSet};

use semel_delivery::relay::store::sql::{StoreError, Value};

use super::history::Stored;
use super::{Line, Store, Tx, line_of};

/// Messages that one transaction follows.
const FOLLOWED_AT_ONCE: usize = 200;
/// Words of one message that are found again.
const WORDS_MAX: usize = 64;
/// Characters of a word.
const WORD_CHARS_MAX: usize = 40;
/// The length of a bucket of the telemetry.
const BUCKET_MILLIS: i64 = 60_000;

/// The words of a text, in lower case, each once.
pub(crate) fn words_of(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.map(|word| word.to_lowercase().chars().take(WORD_CHARS_MAX).collect::<String>());
    words.collect::<BTreeSet<_>>().into_iter().take(WORDS_MAX).collect()
}

/// What of a message is searched: JSON and text.
fn searched(stored: &Stored) -> Option<&str> {
    let is_text = stored.content_type.as_deref().is_some_and(|kind| kind.starts_with("text/"));
    if stored.is_json || is_text { std::str::from_utf8(&stored.body).ok() } else { None }
}

impl Store {
    /// Follows a line as far as it goes now. Says how many messages were followed.
    ///
    /// Crash: what was not committed is followed again.
    pub(crate) async fn follow(&self, line: i64) -> Result<usize, StoreError> {
        let mut total = 0;
        loop {
            let count = self.follow_once(line).await?;
            total += count;
            if count < FOLLOWED_AT_ONCE {
                return Ok(total);
            }
        }
    }

    async fn follow_once(&self, line: i64) -> Result<usize, StoreError> {
        let sql = "SELECT l.line, l.kind, l.ref, l.next_number, l.mesh_id, e.search FROM line l \
            JOIN mesh e ON e.id = l.mesh_id WHERE l.line = $1";
        let rows = self.read(sql, vec![line.into()]).await?;
        let Some(row) = rows.first() else { return Ok(0) };
        let (found, mesh, is_searched) = (line_of(row)?, row.text(4)?, row.int(5)? != 0);
        let mut tx = self.db.begin().await?;
        let begin = "INSERT INTO followed (line, number) VALUES ($1, 0) ON CONFLICT (line) DO NOTHING";
        tx.run(begin, vec![line.into()]).await?;
        let sql = "SELECT number FROM followed WHERE line = $1 /*LOCK*/";
        let after = super::first_int(&tx.run(sql, vec![line.into()]).await?)?;
        let messages = page_in(&mut tx, &found, after).await?;
        let Some(last) = messages.last() else { return Ok(0) };
        let to = last.number;
        write(&mut tx, &mesh, is_searched, &messages).await?;
        tx.run("UPDATE followed SET number = $2 WHERE line = $1", vec![line.into(), to.into()]).await?;
        tx.commit().await?;
        Ok(messages.len())
    }

    /// Lines that were not followed to their end.
    pub(crate) async fn unfollowed(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        let sql = "SELECT l.line FROM line l LEFT JOIN followed f ON f.line = l.line \
            WHERE l.next_number - 1 > coalesce(f.number, 0) ORDER BY l.line LIMIT $1";
        let rows = self.read(sql, vec![(limit as i64).into()]).await?;
        rows.iter().map(|row| row.int(0)).collect()
    }

    /// Removes all that follows, so that it is made again. Says how many lines are to be followed.
    pub(crate) async fn forget_followed(&self) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        for sql in [
            "DELETE FROM search_word",
            // What people did is in no history.
            "DELETE FROM audit_log WHERE event = 'accepted'",
            "DELETE FROM rate_telemetry",
            "DELETE FROM followed",
        ] {
            tx.run(sql, vec![]).await?;
        }
        let lines =
            super::first_int(&tx.run("SELECT count(*) FROM line WHERE next_number > 1", vec![]).await?)?;
        self.note(&mut tx, ("rebuild", "", "", &format!("lines {lines}"))).await?;
        tx.commit().await?;
        Ok(lines)
    }
}

async fn page_in(tx: &mut Tx, line: &Line, after: i64) -> Result<Vec<Stored>, StoreError> {
    let sql = format!(
        "SELECT h.line, h.number, h.broker_message_id, h.sender, m.body, m.body_kind, m.content_type, h.created_at, \
         h.moderated_at FROM message_history h JOIN {} m ON m.id = h.broker_message_id \
         WHERE h.line = $1 AND h.number > $2 ORDER BY h.number LIMIT $3",
        super::history::bodies_of(&line.kind)
    );
    let args = vec![line.line.into(), after.into(), (FOLLOWED_AT_ONCE as i64).into()];
    let rows = tx.run(&sql, args).await?;
    let stored = |row: &semel_delivery::relay::store::sql::Row| {
        Ok(Stored {
            line: row.int(0)?,
            number: row.int(1)?,
            broker_message_id: row.text(2)?,
            client_message_id: String::new(),
            sender: row.text(3)?,
            body: row.bytes(4)?,
            is_json: row.text(5)? == "json",
            content_type: row.maybe_text(6)?,
            client_tx_id: None,
            supersedes: None,
            created_at: row.int(7)?,
            is_moderated: row.maybe_int(8)?.is_some(),
        })
    };
    rows.iter().map(stored).collect()
}

async fn write(tx: &mut Tx, mesh: &str, is_searched: bool, messages: &[Stored]) -> Result<(), StoreError> {
    let (mut words, mut audit) = (Vec::<Vec<Value>>::new(), Vec::new());
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    for stored in messages {
        let (line, number) = (Value::from(stored.line), Value::from(stored.number));
        let id = Value::from(&stored.broker_message_id);
        if let Some(text) = searched(stored).filter(|_| is_searched && !stored.is_moderated) {
            let row = |word: String| vec![mesh.into(), word.into(), id.clone(), line.clone(), number.clone()];
            words.extend(words_of(text).into_iter().map(row));
        }
        let sender = (&stored.sender).into();
        audit.push(vec![line, number, "accepted".into(), id, mesh.into(), sender, stored.created_at.into()]);
        *counts.entry(stored.created_at / BUCKET_MILLIS * BUCKET_MILLIS).or_default() += 1;
    }
    let sql = "INSERT INTO search_word (mesh_id, word, broker_message_id, line, number) VALUES ($1, $2, $3, $4, $5) \
        ON CONFLICT DO NOTHING";
    tx.run_each(sql, words).await?;
    let sql = "INSERT INTO audit_log (line, number, event, broker_message_id, mesh_id, sender, at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
    tx.run_each(sql, audit).await?;
    for (bucket, count) in counts {
        let sql = "INSERT INTO rate_telemetry (mesh_id, bucket, count) VALUES ($1, $2, $3) \
            ON CONFLICT (mesh_id, bucket) DO UPDATE SET count = rate_telemetry.count + excluded.count";
        tx.run(sql, vec![mesh.into(), bucket.into(), count.into()]).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::words_of;

    #[test]
    fn words_are_lower_case_and_each_is_once() {
        assert_eq!(words_of(r#"{"text":"Hello, hello WORLD-42"}"#), ["42", "hello", "text", "world"]);
        assert!(words_of("--- !").is_empty());
        assert_eq!(words_of(&"x".repeat(100))[0].len(), 40);
    }
}
