//! Makes and removes meshes, members, topics, subscriptions and webhooks. Every call says all of what it makes and may be
//! repeated. What changes who gets a message takes the lock of its line, as publishing does, so that the numbers decide
//! exactly.

mod hooks;
mod meshes;

use semel_contract::planted::{self, Bug};
use semel_delivery::relay::store::sql::{StoreError, Value};
use serde::Serialize;

pub(crate) use self::hooks::{WebhookWish, next_secrets};

use super::{Store, Tx, first_int, time};
use crate::identity::Role;
use crate::limits::LIST_MAX;

/// Why a wish of an operator or owner was not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManageError {
    /// What it is about is not there.
    Missing(&'static str),
    /// It cannot be so.
    Refused(String),
    /// The store did not do it.
    Store(StoreError),
}

impl From<StoreError> for ManageError {
    fn from(error: StoreError) -> Self {
        ManageError::Store(error)
    }
}

/// Whether a PUT made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It was not there before.
    Created,
    /// It was.
    Kept,
}

/// What a PUT says of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshWish {
    /// Bytes of bodies that it may keep.
    pub bytes_max: Option<i64>,
    /// Whether its messages can be searched.
    pub search: bool,
}

/// What a PUT says of a member. What it does not say stays as it is; of a new member that is the role `member` and no token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberWish {
    /// Its role.
    pub role: Option<Role>,
    /// All its live tokens, their SHA-256 in hex.
    pub tokens: Option<Vec<String>>,
    /// Tokens beside those.
    pub more_tokens: Vec<String>,
}

/// A mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshInfo {
    /// Its name.
    pub mesh: String,
    /// When it was made.
    pub created_at: String,
    /// What it may keep.
    pub limits: MeshLimits,
    /// Whether its messages can be searched.
    pub search: bool,
    /// What it keeps, in bytes of bodies.
    pub bytes: i64,
}

/// What a mesh may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MeshLimits {
    /// Bytes of bodies.
    pub bytes: Option<i64>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberInfo {
    /// Its name.
    pub member: String,
    /// Its role.
    pub role: String,
    /// When it joined.
    pub joined_at: String,
    /// How many tokens it has.
    pub tokens: i64,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicInfo {
    /// Its name.
    pub topic: String,
    /// Who may publish: `subscribers` or `members`.
    pub publish: String,
    /// When it was made.
    pub created_at: String,
    /// Messages so far.
    pub messages: i64,
    /// Members that are subscribed.
    pub subscribers: i64,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubscriptionInfo {
    /// Who is subscribed.
    pub member: String,
    /// The first number of the line that is for this member.
    pub since: i64,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WebhookInfo {
    /// Its name.
    pub webhook: String,
    /// Where it leads.
    pub url: String,
    /// The topic whose messages it gets.
    pub topic: String,
    /// Whether a message waits for the one before.
    pub ordered: bool,
    /// How many secrets it has.
    pub secrets: usize,
    /// Messages that are still to be sent.
    pub pending: i64,
    /// Messages that were given up.
    pub dead: i64,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

pub(super) fn shown(millis: i64) -> String {
    semel_contract::time::Timestamp::from_millis(millis).to_string()
}

/// Which of a list are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// The one of this name.
    One(&'a str),
    /// Those whose names come after this one, at most so many.
    After(&'a str, usize),
}

impl<'a> From<Option<&'a str>> for Which<'a> {
    fn from(name: Option<&'a str>) -> Self {
        name.map_or(Which::After("", LIST_MAX), Which::One)
    }
}

impl Which<'_> {
    /// What a row's name fulfils; what it is compared with has this place among the arguments.
    pub(super) fn condition(self, column: &str, place: usize) -> String {
        let how = match self {
            Which::One(_) => "=",
            Which::After(..) => ">",
        };
        format!("AND {column} {how} ${place}")
    }

    pub(super) fn limit(self) -> Value {
        match self {
            Which::One(_) => 1_i64.into(),
            Which::After(_, limit) => i64::try_from(limit.min(LIST_MAX)).unwrap_or(1).into(),
        }
    }

    pub(super) fn name(self) -> Value {
        match self {
            Which::One(name) | Which::After(name, _) => name.into(),
        }
    }
}

/// Says to every broker that who belongs to what has changed.
pub(super) async fn tell_change(tx: &mut Tx) -> Result<(), StoreError> {
    tx.run("UPDATE broker_meta SET value = value + 1 WHERE name = 'directory'", vec![]).await.map(drop)
}

/// Refuses what belongs to a mesh that is not there.
pub(super) async fn need_mesh(tx: &mut Tx, mesh: &str) -> Result<(), ManageError> {
    let sql = "SELECT id FROM mesh WHERE id = $1 AND deleted_at IS NULL";
    match tx.run(sql, vec![mesh.into()]).await?.is_empty() {
        true => Err(ManageError::Missing("mesh")),
        false => Ok(()),
    }
}

/// Makes a line, or brings it back. Says its number, where its numbers go on, and whether it is new.
pub(super) async fn put_line(
    tx: &mut Tx,
    mesh: &str,
    kind: &str,
    name: &str,
    publish: &str,
    now: i64,
) -> Result<(i64, i64, Put), StoreError> {
    let sql = "INSERT INTO line (mesh_id, kind, ref, publish, created_at) VALUES ($1, $2, $3, $4, $5) \
        ON CONFLICT (mesh_id, kind, ref) DO NOTHING RETURNING line";
    let args = vec![mesh.into(), kind.into(), name.into(), publish.into(), now.into()];
    let is_new = !tx.run(sql, args).await?.is_empty();
    let (line, next, is_deleted) = lock_line(tx, mesh, kind, name).await?.ok_or_else(gone)?;
    let sql = "UPDATE line SET publish = $2, deleted_at = NULL WHERE line = $1";
    tx.run(sql, vec![line.into(), publish.into()]).await?;
    let put = if is_new || is_deleted { Put::Created } else { Put::Kept };
    Ok((line, next, put))
}

fn gone() -> StoreError {
    StoreError::Failed("a line is gone".to_owned())
}

/// Locks a line: its number, where its numbers go on, and whether it was removed.
pub(super) async fn lock_line(
    tx: &mut Tx,
    mesh: &str,
    kind: &str,
    name: &str,
) -> Result<Option<(i64, i64, bool)>, StoreError> {
    let sql = "SELECT line, next_number, deleted_at FROM line WHERE mesh_id = $1 AND kind = $2 AND ref = $3 /*LOCK*/";
    let rows = tx.run(sql, vec![mesh.into(), kind.into(), name.into()]).await?;
    rows.first().map(|row| Ok((row.int(0)?, row.int(1)?, row.maybe_int(2)?.is_some()))).transpose()
}

/// Begins an interval at this number, unless one is open.
pub(super) async fn open_interval(
    tx: &mut Tx,
    line: i64,
    member: &str,
    since: i64,
) -> Result<Put, StoreError> {
    let sql = "SELECT since FROM topic_subscription WHERE line = $1 AND member = $2 AND until IS NULL";
    if !tx.run(sql, vec![line.into(), member.into()]).await?.is_empty() {
        return Ok(Put::Kept);
    }
    // An interval that was ended at the number where it began has nothing in it: it goes on.
    let sql = "INSERT INTO topic_subscription (line, member, since) VALUES ($1, $2, $3) \
        ON CONFLICT (line, member, since) DO NOTHING RETURNING since";
    let args = vec![line.into(), member.into(), since.into()];
    if tx.run(sql, args.clone()).await?.is_empty() {
        let sql = "UPDATE topic_subscription SET until = NULL WHERE line = $1 AND member = $2 AND since = $3";
        tx.run(sql, args).await?;
    }
    Ok(Put::Created)
}

impl Store {
    /// Makes a topic, or says again what it is.
    pub(crate) async fn put_topic(&self, mesh: &str, topic: &str, publish: &str) -> Result<Put, ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        need_mesh(&mut tx, mesh).await?;
        let (.., put) = put_line(&mut tx, mesh, "topic", topic, publish, now).await?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("put-topic", mesh, topic, &format!("published by {publish}"))).await?;
        tx.commit().await?;
        Ok(put)
    }

    /// Removes a topic: nobody publishes to it or is subscribed any more. What was published stays until it expires.
    pub(crate) async fn remove_topic(&self, mesh: &str, topic: &str) -> Result<(), ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let Some((line, next, _)) = lock_line(&mut tx, mesh, "topic", topic).await? else { return Ok(()) };
        tx.run(
            "UPDATE line SET deleted_at = coalesce(deleted_at, $2) WHERE line = $1",
            vec![line.into(), now.into()],
        )
        .await?;
        let sql = "UPDATE topic_subscription SET until = $2 WHERE line = $1 AND until IS NULL";
        tx.run(sql, vec![line.into(), next.into()]).await?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("remove-topic", mesh, topic, "")).await?;
        Ok(tx.commit().await?)
    }

    /// Topics of a mesh, or the one of this name.
    pub(crate) async fn topics(&self, mesh: &str, which: Which<'_>) -> Result<Vec<TopicInfo>, StoreError> {
        let sql = format!(
            "SELECT l.ref, l.publish, l.created_at, l.next_number - 1, (SELECT count(*) FROM topic_subscription s \
             WHERE s.line = l.line AND s.until IS NULL) FROM line l WHERE l.mesh_id = $1 AND l.kind = 'topic' \
             AND l.deleted_at IS NULL {} ORDER BY l.ref LIMIT $2",
            which.condition("l.ref", 3)
        );
        let rows = self.read(&sql, vec![mesh.into(), which.limit(), which.name()]).await?;
        let info = |row: &semel_delivery::relay::store::sql::Row| {
            Ok(TopicInfo {
                topic: row.text(0)?,
                publish: row.text(1)?,
                created_at: shown(row.int(2)?),
                messages: row.int(3)?,
                subscribers: row.int(4)?,
            })
        };
        rows.iter().map(info).collect()
    }

    /// Subscribes a member: from the next number on every message of the topic is for it.
    ///
    /// After: messages that commit later are for it, those that committed before are not, with no third kind.
    pub(crate) async fn subscribe(&self, mesh: &str, topic: &str, member: &str) -> Result<Put, ManageError> {
        let mut early = None;
        if planted::is(Bug::BrokerIntervalWithoutLock) {
            early = self.line(mesh, "topic", topic).await?.map(|line| line.next_number);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let mut tx = self.db.begin().await?;
        // Locked, so that nobody removes it between this look and the commit.
        let sql = "SELECT member FROM member WHERE mesh_id = $1 AND member = $2 AND left_at IS NULL /*LOCK*/";
        if tx.run(sql, vec![mesh.into(), member.into()]).await?.is_empty() {
            return Err(ManageError::Missing("member"));
        }
        let (line, next) = match lock_line(&mut tx, mesh, "topic", topic).await? {
            Some((line, next, false)) => (line, early.unwrap_or(next)),
            Some((_, _, true)) | None => return Err(ManageError::Missing("topic")),
        };
        let put = open_interval(&mut tx, line, member, next).await?;
        if put == Put::Created {
            tell_change(&mut tx).await?;
        }
        self.note(&mut tx, ("subscribe", mesh, member, &format!("topic {topic}"))).await?;
        tx.commit().await?;
        Ok(put)
    }

    /// Ends a subscription: from the next number on no message is for the member.
    pub(crate) async fn unsubscribe(&self, mesh: &str, topic: &str, member: &str) -> Result<(), ManageError> {
        let mut tx = self.db.begin().await?;
        let Some((line, next, _)) = lock_line(&mut tx, mesh, "topic", topic).await? else { return Ok(()) };
        let sql =
            "UPDATE topic_subscription SET until = $3 WHERE line = $1 AND member = $2 AND until IS NULL";
        tx.run(sql, vec![line.into(), member.into(), next.into()]).await?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("unsubscribe", mesh, member, &format!("topic {topic}"))).await?;
        Ok(tx.commit().await?)
    }

    /// Who is subscribed to a topic.
    pub(crate) async fn subscriptions(
        &self,
        mesh: &str,
        topic: &str,
        which: Which<'_>,
    ) -> Result<Vec<SubscriptionInfo>, StoreError> {
        let sql = format!(
            "SELECT s.member, s.since FROM topic_subscription s JOIN line l ON l.line = s.line WHERE l.mesh_id = $1 \
             AND l.kind = 'topic' AND l.ref = $2 AND s.until IS NULL {} ORDER BY s.member LIMIT $3",
            which.condition("s.member", 4)
        );
        let rows = self.read(&sql, vec![mesh.into(), topic.into(), which.limit(), which.name()]).await?;
        rows.iter().map(|row| Ok(SubscriptionInfo { member: row.text(0)?, since: row.int(1)? })).collect()
    }

    /// Begins a new epoch: what readers have seen of the former one may have been lost.
    pub(crate) async fn begin_epoch(&self) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        // A backup that is restored twice begins two epochs, not one of them twice.
        let sql = "UPDATE broker_meta SET value = CASE WHEN value + 1 > $1 THEN value + 1 ELSE $1 END \
            WHERE name = 'epoch' RETURNING value";
        let epoch = first_int(&tx.run(sql, vec![(now / 1000).into()]).await?)?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("restored", "", "", &format!("epoch {epoch}"))).await?;
        tx.commit().await?;
        Ok(epoch)
    }
}
