//! Signals between processes, by Redis: messages on a channel, and keys that say who is at work on something. All of it may
//! be lost, late or untrue at any time, and whoever uses it must do the right thing all the same.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::ConnectionManager;
use redis::{Client, Script};

use crate::claims::StoreError;
use crate::redis_link::{in_time, open, unavailable};

/// How long Redis may take, connecting included.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long after a failure the channel is listened to again.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);
/// A channel that was silent for so long may be a dead connection: it is opened anew.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Takes a key back, if it is still ours.
const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Signals by Redis.
#[derive(Clone)]
pub struct RedisSignals {
    client: Client,
    connection: ConnectionManager,
    unlock: Script,
}

impl fmt::Debug for RedisSignals {
    /// Without the connection: its address may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSignals").finish_non_exhaustive()
    }
}

impl RedisSignals {
    /// Signals at `redis://HOST:PORT`. Connects with the first call, so that semel starts also while Redis is away. Call
    /// it within a tokio runtime.
    pub fn at(url: &str) -> Result<Self, StoreError> {
        let (client, connection) = open(url, PATIENCE)?;
        Ok(Self { client, connection, unlock: Script::new(UNLOCK) })
    }

    /// Says something on a channel.
    pub async fn say(&self, channel: &str, text: &str) -> Result<(), StoreError> {
        let (mut connection, mut command) = (self.connection.clone(), redis::cmd("PUBLISH"));
        command.arg(channel).arg(text);
        in_time(PATIENCE, command.query_async(&mut connection)).await
    }

    /// Writes down who is at work, unless somebody else is. Says whether it did; it did too where it was us already.
    pub async fn lock(&self, key: &str, owner: &str, life: Duration) -> Result<bool, StoreError> {
        let (mut connection, mut command) = (self.connection.clone(), redis::cmd("SET"));
        command.arg(key).arg(owner).arg("NX").arg("PX").arg(millis(life));
        if in_time::<Option<String>>(PATIENCE, command.query_async(&mut connection)).await?.is_some() {
            return Ok(true);
        }
        let mut command = redis::cmd("GET");
        command.arg(key);
        let holder: Option<Vec<u8>> = in_time(PATIENCE, command.query_async(&mut connection)).await?;
        Ok(holder.is_none_or(|holder| holder == owner.as_bytes()))
    }

    /// Takes it back, if it is still ours.
    pub async fn unlock(&self, key: &str, owner: &str) -> Result<(), StoreError> {
        let mut connection = self.connection.clone();
        let mut call = self.unlock.key(key);
        in_time(PATIENCE, call.arg(owner).invoke_async(&mut connection)).await
    }

    /// Writes a key that goes by itself.
    pub async fn mark(&self, key: &str, value: &str, life: Duration) -> Result<(), StoreError> {
        let (mut connection, mut command) = (self.connection.clone(), redis::cmd("SET"));
        command.arg(key).arg(value).arg("PX").arg(millis(life));
        in_time(PATIENCE, command.query_async(&mut connection)).await
    }

    /// Hears what is said on a channel, for ever: comes back by itself after Redis was away. `heard` is also called, with
    /// nothing, each time that the channel is open anew, since something may have been missed.
    pub async fn listen(&self, channel: &str, heard: impl Fn(&str) + Send) {
        loop {
            // A failure is no news: nothing that matters depends on it.
            let _ = self.listen_once(channel, &heard).await;
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    async fn listen_once(&self, channel: &str, heard: &(impl Fn(&str) + Send)) -> Result<(), StoreError> {
        let opened = async {
            let mut opened = self.client.get_async_pubsub().await?;
            opened.subscribe(channel).await?;
            Ok(opened)
        };
        let mut messages = in_time(4 * PATIENCE, opened).await?.into_on_message();
        heard("");
        while let Ok(Some(message)) = tokio::time::timeout(SILENCE_MAX, messages.next()).await {
            let text: String = message.get_payload().map_err(unavailable)?;
            heard(&text);
        }
        Ok(())
    }
}

fn millis(life: Duration) -> u64 {
    u64::try_from(life.as_millis()).unwrap_or(u64::MAX).max(1)
}
