//! What operators and owners do: meshes, members, topics, subscriptions, webhooks; seals and moderation; and the upkeep of what is
//! kept. After each change every stream looks again whether it may go on.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_contract::time::millis_of;
use semel_delivery::Operator;
use semel_delivery::relay::store::sql::StoreError;
use serde::Deserialize;

use super::Broker;
use crate::identity::{Caller, Role};
use crate::limits::SECRETS_MAX;
use crate::message::check_name;
use crate::published::{Receipt, Refusal};
use crate::store::Store;
use crate::store::ids::Seal;
use crate::store::manage::{
    ManageError, MemberInfo, MemberWish, MeshInfo, MeshWish, Put, SubscriptionInfo, TopicInfo, WebhookInfo,
    WebhookWish, Which,
};
use crate::store::orphans::Orphans;
use crate::store::sweep::Swept;
use crate::store::trail::Audited;

/// What a PUT says of a webhook.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookBody {
    /// Where messages are sent.
    pub url: String,
    /// The topic whose messages they are.
    pub topic: String,
    /// `whsec_…`, one or two.
    pub secrets: Vec<String>,
    /// Whether a message waits for the one before.
    #[serde(default = "is_usual")]
    pub ordered: bool,
}

fn is_usual() -> bool {
    true
}

/// What a seal found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealAnswer {
    /// The id is cancelled.
    Sealed,
    /// The caller's own message has it.
    Committed(Receipt),
    /// Another's message has it.
    Others,
    /// The member has sent too many unknown ids. Nothing is known of this one.
    Limited {
        /// When there is room again.
        retry_after: Duration,
    },
}

fn named(what: &str, name: &str) -> Result<(), ManageError> {
    check_name(what, name).map_err(|refusal| match refusal {
        Refusal::Malformed(why) => ManageError::Refused(why),
        other => ManageError::Refused(format!("{other:?}")),
    })
}

impl Broker {
    /// The same broker, in the name of somebody: what they change by hand stands in the trail, with who and why.
    #[must_use]
    pub fn by(&self, operator: Operator) -> Self {
        Self(std::sync::Arc::clone(&self.0), Some(operator))
    }

    /// The store in the name of whoever acts.
    fn store(&self) -> Store {
        self.1.as_ref().map_or_else(|| self.0.store.clone(), |operator| self.0.store.by(operator))
    }

    /// What was done by hand, the latest first; or what came before this number.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn trail(&self, before: Option<i64>, limit: i64) -> Result<Vec<Audited>, StoreError> {
        self.0.store.trail(before, limit).await
    }

    /// Everything that was kept of who belongs to what is looked at again.
    async fn changed<T>(&self, result: Result<T, ManageError>) -> Result<T, ManageError> {
        // The change is made; a look that fails now happens within the next poll.
        let _ = self.0.directory.refresh().await;
        result
    }

    /// Makes a mesh, or says again what it may.
    ///
    /// # Errors
    /// The name is none, or the store does not do it.
    pub async fn put_mesh(&self, mesh: &str, wish: MeshWish) -> Result<Put, ManageError> {
        named("mesh", mesh)?;
        self.changed(self.store().put_mesh(mesh, wish).await).await
    }

    /// Removes a mesh.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn remove_mesh(&self, mesh: &str) -> Result<(), ManageError> {
        self.changed(self.store().remove_mesh(mesh).await).await
    }

    /// Meshes in the order of their names, or the one of this name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn meshes<'a>(&self, which: impl Into<Which<'a>>) -> Result<Vec<MeshInfo>, StoreError> {
        self.0.store.meshes(which.into()).await
    }

    /// Makes a member, or says again its role and all its live tokens (their SHA-256 in hex).
    ///
    /// # Errors
    /// There is no such mesh, or a token cannot be so.
    pub async fn put_member(
        &self,
        mesh: &str,
        member: &str,
        role: Role,
        tokens: &[String],
    ) -> Result<Put, ManageError> {
        let wish = MemberWish { role: Some(role), tokens: Some(tokens.to_vec()), ..MemberWish::default() };
        self.change_member(mesh, member, &wish).await
    }

    /// Makes a member, or changes what is said of it, and leaves the rest.
    ///
    /// # Errors
    /// There is no such mesh, or a token cannot be so.
    pub async fn change_member(
        &self,
        mesh: &str,
        member: &str,
        wish: &MemberWish,
    ) -> Result<Put, ManageError> {
        named("member", member)?;
        self.changed(self.store().put_member(mesh, member, wish).await).await
    }

    /// Removes a member, its tokens and its subscriptions.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn remove_member(&self, mesh: &str, member: &str) -> Result<(), ManageError> {
        self.changed(self.store().remove_member(mesh, member).await).await
    }

    /// Members of a mesh in the order of their names, or the one of this name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn members<'a>(
        &self,
        mesh: &str,
        which: impl Into<Which<'a>>,
    ) -> Result<Vec<MemberInfo>, StoreError> {
        self.0.store.members(mesh, which.into()).await
    }

    /// Makes a topic, or says again who may publish: `subscribers` or `members`.
    ///
    /// # Errors
    /// There is no such mesh, or nobody is called so.
    pub async fn put_topic(&self, mesh: &str, topic: &str, publish: &str) -> Result<Put, ManageError> {
        named("topic", topic)?;
        if !["subscribers", "members"].contains(&publish) {
            return Err(ManageError::Refused("publish is either `subscribers` or `members`".to_owned()));
        }
        self.changed(self.store().put_topic(mesh, topic, publish).await).await
    }

    /// Removes a topic.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn remove_topic(&self, mesh: &str, topic: &str) -> Result<(), ManageError> {
        self.changed(self.store().remove_topic(mesh, topic).await).await
    }

    /// Topics of a mesh in the order of their names, or the one of this name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn topics<'a>(
        &self,
        mesh: &str,
        which: impl Into<Which<'a>>,
    ) -> Result<Vec<TopicInfo>, StoreError> {
        self.0.store.topics(mesh, which.into()).await
    }

    /// Subscribes a member to a topic, from the next message on.
    ///
    /// # Errors
    /// There is no such topic or member.
    pub async fn put_subscription(&self, mesh: &str, topic: &str, member: &str) -> Result<Put, ManageError> {
        self.changed(self.store().subscribe(mesh, topic, member).await).await
    }

    /// Ends a subscription.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn remove_subscription(
        &self,
        mesh: &str,
        topic: &str,
        member: &str,
    ) -> Result<(), ManageError> {
        self.changed(self.store().unsubscribe(mesh, topic, member).await).await
    }

    /// Who is subscribed to a topic.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn subscriptions<'a>(
        &self,
        mesh: &str,
        topic: &str,
        which: impl Into<Which<'a>>,
    ) -> Result<Vec<SubscriptionInfo>, StoreError> {
        self.0.store.subscriptions(mesh, topic, which.into()).await
    }

    /// Makes a webhook, or says again what it is.
    ///
    /// # Errors
    /// There is no such topic, the URL is none, or a secret is malformed.
    pub async fn put_webhook(&self, mesh: &str, name: &str, body: WebhookBody) -> Result<Put, ManageError> {
        named("webhook", name)?;
        let WebhookBody { url, topic, secrets, ordered } = body;
        let target = semel_delivery::url::Target::absolute(&url)
            .map_err(|error| ManageError::Refused(format!("the webhook's URL: {error}")))?;
        // Names are looked at when they are resolved; an address can be refused at once.
        let is_refused = |address: std::net::IpAddr| !self.settings().webhook_addresses().allows(address);
        if target.host.parse().is_ok_and(is_refused) {
            return Err(ManageError::Refused(
                "the webhook's address may not be reached from here".to_owned(),
            ));
        }
        if !(1..=SECRETS_MAX).contains(&secrets.len()) {
            return Err(ManageError::Refused(format!("a webhook has 1 to {SECRETS_MAX} secrets")));
        }
        let is_secret = |secret: &String| {
            let key = secret.strip_prefix("whsec_").and_then(|key| STANDARD.decode(key).ok());
            key.is_some_and(|key| (24..=64).contains(&key.len()))
        };
        if !secrets.iter().all(is_secret) {
            let why = "a secret is `whsec_` and the base64 of 24 to 64 random bytes";
            return Err(ManageError::Refused(why.to_owned()));
        }
        let wish = WebhookWish { url, topic, secrets, is_ordered: ordered };
        self.changed(self.store().put_webhook(mesh, name, &wish).await).await
    }

    /// Removes a webhook.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn remove_webhook(&self, mesh: &str, name: &str) -> Result<(), ManageError> {
        self.changed(self.store().remove_webhook(mesh, name).await).await
    }

    /// Webhooks of a mesh in the order of their names, or the one of this name.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn webhooks<'a>(
        &self,
        mesh: &str,
        which: impl Into<Which<'a>>,
    ) -> Result<Vec<WebhookInfo>, StoreError> {
        self.0.store.webhooks(mesh, which.into()).await
    }

    /// Sends what a webhook was not given once more. Says how many messages that are.
    ///
    /// # Errors
    /// There is no such webhook.
    pub async fn requeue_dead(&self, mesh: &str, name: &str) -> Result<i64, ManageError> {
        let count = self.store().requeue_dead(mesh, name).await?.ok_or(ManageError::Missing("webhook"))?;
        self.0.follower.deliver.notify_one();
        Ok(count)
    }

    /// Cancels an id of a member, or says what has it.
    ///
    /// # Errors
    /// The store does not do it, or cannot say whether it did.
    pub async fn seal(&self, caller: &Caller, id: &str) -> Result<SealAnswer, StoreError> {
        let settings = self.settings();
        // An unknown id leaves a row behind: it costs what publishing one does. Of a known one the answer is the same.
        if settings.request_limit.is_some() && self.0.store.look_up(&caller.mesh, id).await?.is_none() {
            let now = self.time().await;
            if let Err(Refusal::RequestLimited { retry_after }) =
                self.charge_request(caller, &settings, now).await
            {
                return Ok(SealAnswer::Limited { retry_after });
            }
        }
        let retention = millis_of(settings.dedupe_retention);
        Ok(match self.0.store.seal(caller, id, retention).await? {
            Seal::Sealed => SealAnswer::Sealed,
            Seal::Committed(known) if known.sender == caller.member => SealAnswer::Committed(known.receipt),
            Seal::Committed(_) => SealAnswer::Others,
        })
    }

    /// Hides the body of a message from readers, and notes who did and why.
    ///
    /// # Errors
    /// There is no such message.
    pub async fn moderate(&self, mesh: &str, id: &str, who: &str, why: &str) -> Result<Receipt, ManageError> {
        let known = self.0.store.look_up(mesh, id).await?.ok_or(ManageError::Missing("message"))?;
        match self.store().moderate((known.line, known.number), (mesh, id), (who, why)).await? {
            true => {
                // Readers that are here hear of it; of other brokers at once, too.
                self.0.hub.wake(known.line);
                if !self.0.store.db.is_owned() {
                    self.0.wakes.announce(&[known.line]);
                }
                Ok(known.receipt)
            }
            false => Err(ManageError::Missing("message")),
        }
    }

    /// Removes what has expired.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let swept = self.0.store.sweep().await?;
        self.0.meters.count_sweep(&swept);
        let detail = format!("ids {}, messages {}", swept.ids, swept.messages);
        self.store().note_alone(("sweep", "", "", &detail)).await?;
        Ok(swept)
    }

    /// Looks for rows without those that belong to them.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn orphans(&self) -> Result<Orphans, StoreError> {
        let found = self.0.store.orphans().await?;
        self.0.meters.set_orphans(found.findings.len());
        let detail = format!("looked at {}, found {}", found.looked, found.findings.len());
        self.store().note_alone(("orphans", "", "", &detail)).await?;
        Ok(found)
    }

    /// Makes the search index, the audit log and the telemetry again from the history. Says how many lines there are.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn rebuild(&self) -> Result<i64, StoreError> {
        self.0.store.count_again().await?;
        let lines = self.store().forget_followed().await?;
        self.follow_all().await?;
        Ok(lines)
    }

    /// Follows every line that was not followed to its end.
    pub(crate) async fn follow_all(&self) -> Result<(), StoreError> {
        loop {
            let lines = self.0.store.unfollowed(1000).await?;
            let mut followed = 0;
            for line in lines {
                followed += self.0.store.follow(line).await?;
            }
            if followed == 0 {
                return Ok(());
            }
        }
    }

    /// The time by which things expire, and by how many milliseconds the clock is ahead of it, unbelieved. Meanwhile nothing
    /// expires.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn clock(&self) -> Result<(i64, i64), StoreError> {
        self.0.store.clock().await
    }

    /// A person says that the clock is right after its jump, and why. `false`: it was believed, and nothing changed.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn confirm_clock(&self, who: &str, why: &str) -> Result<bool, StoreError> {
        self.store().confirm_clock(who, why).await
    }

    /// Begins a new epoch, after the database was restored from a backup. Says which.
    ///
    /// # Errors
    /// The store does not do it.
    pub async fn restored(&self) -> Result<i64, StoreError> {
        let epoch = self.store().begin_epoch().await?;
        self.0.directory.refresh().await?;
        Ok(epoch)
    }
}
