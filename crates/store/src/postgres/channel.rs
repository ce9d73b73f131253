//! A channel on which processes that share a database tell each other that something changed. Owns the connection that hears.
//! Only a hint: what is said may come late, for nothing, or never.

use std::future::poll_fn;
use std::time::Duration;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Config, Socket};

/// Says something on a channel, the first argument. A hint that a crash may take along is not worth a sync of the log.
pub const SAY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1::text, $2::text)";

/// The pause before a lost connection is made again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Hears what is said on a channel, for ever, on a connection of its own that is made again when it is lost. `heard` is also
/// called, with nothing, each time that the channel is open anew, since something may have been missed. The channel's name is
/// put into the statement as it is.
pub async fn listen<T>(config: &Config, tls: T, channel: &'static str, heard: impl Fn(&str) + Send)
where
    T: MakeTlsConnect<Socket> + Clone,
{
    loop {
        // A failure is no news: nothing that matters depends on it.
        let _ = listen_once(config, tls.clone(), channel, &heard).await;
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn listen_once<T>(
    config: &Config,
    tls: T,
    channel: &'static str,
    heard: &(impl Fn(&str) + Send),
) -> Result<(), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
{
    let (client, mut connection) = config.connect(tls).await?;
    let (open, opened) = tokio::sync::oneshot::channel();
    let listening = async {
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        let _ = open.send(());
        // The client is held for as long as the connection lasts.
        std::future::pending::<Result<(), tokio_postgres::Error>>().await
    };
    let driving = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message? {
                heard(notification.payload());
            }
        }
        Ok(())
    };
    let telling = async {
        if opened.await.is_ok() {
            heard("");
        }
        std::future::pending().await
    };
    tokio::select! {
        ended = driving => ended,
        failed = listening => failed,
        never = telling => never,
    }
}
