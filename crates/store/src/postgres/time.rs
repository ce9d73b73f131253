//! The guarded time of a schema of a server, for stores that bring their own statements: the table `clock` of their schema, as
//! `semel.clock` is the gate's. A store asks for the time by [`ServerTime::sql`] with [`ServerTime::ask`]'s arguments and hands the
//! row to [`ServerTime::learn`]: a step of the server's clock that nobody meant is not in it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use tokio_postgres::Client;

use super::clock::{self, Belief, Jump, Seen, ServerClock, stored_ticks};
use super::sql;
use crate::clock::{Clock, JUMP_MILLIS, SystemClock, boot_time};

/// How often the time is written down, and a jump noticed though nobody asks for anything.
pub const MARK_EVERY: Duration = Duration::from_secs(10);

/// What is asked of a server that is asked for the time: the first three arguments of the statement, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The arguments.
    pub args: [i64; 3],
    sent: Duration,
}

/// What the server answers: the columns of [`ServerTime::sql`], in their order.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The store's time.
    pub now: i64,
    /// The server's clock as it is corrected.
    pub wall: i64,
    /// The revision of the clock's row.
    pub revision: i64,
    /// By how much the clock is ahead, where that is written down.
    pub jump: Option<i64>,
}

/// The time of a server as one process sees it.
#[derive(Debug)]
pub struct ServerTime {
    clock: ServerClock,
    schema: &'static str,
    sql: String,
    ahead: AtomicI64,
    /// A jump that is to be written down.
    found: Mutex<Option<Jump>>,
}

/// A statement about `semel.clock`, about the clock of this schema.
fn of_schema(schema: &str, sql: &str) -> String {
    if schema == "semel" { sql.to_owned() } else { sql.replace("semel.", &format!("{schema}.")) }
}

/// The clock to begin with. Where the server's clock cannot be believed, that is written down before anybody acts by it.
pub(super) async fn begin(client: &Client, schema: &str) -> Result<ServerClock, tokio_postgres::Error> {
    let (boot, sent) = (SystemClock.boot(), SystemClock.read());
    let all: i64 = i64::MAX / 4;
    let sql = of_schema(schema, sql::BEGIN);
    let row = client.query_one(&sql, &[&0_i64, &0_i64, &all, &boot.cast_signed()]).await?;
    let seen =
        Seen { now: row.try_get("now")?, wall: row.try_get("wall")?, revision: row.try_get("revision")? };
    let found = clock::Found {
        seen,
        high_water: row.try_get("high_water")?,
        mark: Option::zip(row.try_get("time_ms")?, row.try_get("ticks_ms")?),
        uncorrected: row.try_get("uncorrected")?,
    };
    let begun = clock::begin(found, sent, boot, SystemClock.is_synchronised());
    if let Some(jump) = begun.jump {
        correct(client, schema, jump).await?;
    }
    let ticks = stored_ticks(sent.ticks);
    let sql = of_schema(schema, sql::MARK);
    client.execute(&sql, &[&boot.cast_signed(), &begun.time, &ticks]).await?;
    let last = begun.time.saturating_add(row.try_get("moved_ms")?);
    Ok(ServerClock::new(begun.time, sent.ticks, last, seen.revision))
}

async fn correct(client: &Client, schema: &str, jump: Jump) -> Result<(), tokio_postgres::Error> {
    let sql = of_schema(schema, sql::CORRECT);
    client.execute(&sql, &[&jump.by_millis, &jump.revision, &!jump.is_contradicted]).await.map(drop)
}

impl ServerTime {
    /// Begins to count, from what the last process wrote down.
    ///
    /// # Errors
    /// The server does not answer, or the schema has no clock.
    pub async fn begin(client: &Client, schema: &'static str) -> Result<Self, tokio_postgres::Error> {
        let clock = begin(client, schema).await?;
        let time = Self::of(clock, schema);
        let sql = of_schema(schema, "SELECT jump_ms FROM semel.clock WHERE frozen");
        let row = client.query_opt(&sql, &[]).await?;
        let jump: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
        time.ahead.store(jump.unwrap_or(0), Ordering::SeqCst);
        Ok(time)
    }

    fn of(clock: ServerClock, schema: &'static str) -> Self {
        let sql =
            sql::TIME.replace("FROM t", ", (SELECT jump_ms FROM semel.clock WHERE frozen) AS jump FROM t");
        Self {
            clock,
            schema,
            sql: of_schema(schema, &sql),
            ahead: AtomicI64::new(0),
            found: Mutex::default(),
        }
    }

    /// The statement that asks for the time. It answers one row: `now`, `wall`, `revision`, `jump`.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// What it is asked with now.
    pub fn ask(&self) -> Question {
        self.ask_at(boot_time())
    }

    fn ask_at(&self, sent: Duration) -> Question {
        let Belief { ticked, last, within } = self.clock.belief(sent);
        Question { args: [ticked, last, within], sent }
    }

    /// Takes in what the server said. Says the store's time.
    pub fn learn(&self, asked: Question, answer: Answer) -> i64 {
        self.learn_at(asked, answer, boot_time())
    }

    fn learn_at(&self, asked: Question, answer: Answer, answered: Duration) -> i64 {
        let Answer { now, wall, revision, jump } = answer;
        let found = self.clock.learn(Seen { now, wall, revision }, asked.sent, answered);
        if planted::is(Bug::BrokerServerClockBelieved) {
            return wall;
        }
        let seen = found.map_or(0, |jump| jump.by_millis);
        let unseen = if seen > JUMP_MILLIS { seen } else { 0 };
        self.ahead.store(jump.unwrap_or(0).saturating_add(unseen), Ordering::SeqCst);
        if found.is_some() {
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        now
    }

    /// By how many milliseconds the server's clock is ahead, unbelieved, as far as this process has heard.
    pub fn ahead(&self) -> i64 {
        self.ahead.load(Ordering::SeqCst)
    }

    /// Writes down what there is to write: a jump that was found, how far was counted, and whether a time service vouches for a
    /// clock that nothing explained. To be called every [`MARK_EVERY`], after the time was asked for.
    ///
    /// # Errors
    /// The server does not answer. Nothing is lost by it: the next call does it.
    pub async fn keep(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(jump) = found {
            correct(client, self.schema, jump).await?;
        }
        let ticks = boot_time();
        let Belief { ticked, .. } = self.clock.belief(ticks);
        let boot = SystemClock.boot().cast_signed();
        let mark = of_schema(self.schema, sql::MARK);
        client.execute(&mark, &[&boot, &ticked, &stored_ticks(ticks)]).await?;
        if SystemClock.is_synchronised() {
            let wall = SystemClock.read().wall.millis();
            client.query(&of_schema(self.schema, sql::VOUCH), &[&wall]).await?;
        }
        Ok(())
    }

    /// Whether there is a jump to be written down, which other processes should hear of soon.
    pub fn has_found(&self) -> bool {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// A person says that the server's clock is right.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn confirm(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(jump) = found {
            correct(client, self.schema, jump).await?;
        }
        client.query(&of_schema(self.schema, "SELECT semel.confirm_clock()"), &[]).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    /// What a server says whose clock shows this, by the rule of the statement.
    fn answered(asked: Question, wall: i64) -> Answer {
        let [ticked, last, within] = asked.args;
        let now = (ticked - within).max(wall.min(ticked + within)).max(last);
        Answer { now, wall, revision: 1, jump: None }
    }

    #[test]
    fn the_time_of_a_server_whose_clock_jumps_goes_on_as_it_ticks() {
        let second = |seconds: u64| Duration::from_secs(seconds);
        let time = ServerTime::of(ServerClock::new(10 * DAY, second(0), 10 * DAY, 1), "semel_broker");
        let asked = time.ask_at(second(10));
        let right = time.learn_at(asked, answered(asked, 10 * DAY + 10_000), second(10));
        assert_eq!((right, time.ahead(), time.has_found()), (10 * DAY + 10_000, 0, false));
        let asked = time.ask_at(second(20));
        let jumped = time.learn_at(asked, answered(asked, 18 * DAY + 20_000), second(20));
        assert!((10 * DAY + 20_000..10 * DAY + 21_000).contains(&jumped), "nothing expires by it: {jumped}");
        assert_eq!((time.ahead(), time.has_found()), (8 * DAY, true));
        let asked = time.ask_at(second(30));
        let corrected = Answer { revision: 2, jump: Some(8 * DAY), ..answered(asked, 10 * DAY + 30_000) };
        assert_eq!(time.learn_at(asked, corrected, second(30)), 10 * DAY + 30_000);
        assert_eq!(time.ahead(), 8 * DAY, "until somebody confirms it");
    }

    #[test]
    fn the_statements_are_about_the_clock_of_the_schema() {
        let time = ServerTime::of(ServerClock::new(0, Duration::ZERO, 0, 1), "semel_broker");
        assert!(time.sql().contains("semel_broker.clock") && !time.sql().contains("semel.clock"));
        assert!(time.sql().contains("AS jump FROM t"), "{}", time.sql());
    }
}
