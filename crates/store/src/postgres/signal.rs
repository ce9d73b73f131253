//! Tells the waiters of other processes that a key may have changed: hashes in a notification, sent after commits and
//! never inside them. Only a hint: whatever is lost here, polling finds.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Config, Socket};

use super::{Core, channel};

/// Hashes that wait to be sent; more are lost, as hints may be.
pub(super) const SIGNALS_MAX: usize = 4096;
/// Hashes in one notification: each takes 32 of the 8000 bytes that the server allows.
const HASHES_MAX: usize = 240;
/// The pause between two notifications: what is announced meanwhile goes into the next. The first is sent at once.
const NOTIFY_PAUSE: Duration = Duration::from_millis(5);
/// Where processes tell each other.
const CHANNEL: &str = "semel";

/// Sends what queued while the last notification was on its way, as one. Ends when the store is dropped.
pub(super) async fn send(core: Weak<Core>, mut queue: mpsc::Receiver<[u8; 16]>) {
    let mut hashes = Vec::new();
    while queue.recv_many(&mut hashes, HASHES_MAX).await > 0 {
        let Some(core) = core.upgrade() else { return };
        let payload = written(hashes.drain(..).collect());
        let _ = core.link.run_untimed(channel::SAY, &[&CHANNEL, &payload]).await;
        drop(core);
        tokio::time::sleep(NOTIFY_PAUSE).await;
    }
}

/// Listens until the store is dropped.
pub(super) async fn listen<T>(core: Weak<Core>, config: Config, tls: T)
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let heard = |text: &str| {
        if let Some(core) = core.upgrade() {
            read(text).into_iter().for_each(|hash| core.hints.wake(hash));
        }
    };
    channel::listen(&config, tls, CHANNEL, heard).await;
}

fn written(hashes: BTreeSet<[u8; 16]>) -> String {
    hashes.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}

/// The hashes of a payload; what is not a hash is passed over, since anybody may notify.
fn read(payload: &str) -> Vec<[u8; 16]> {
    let of_hex = |text: &[u8]| {
        let text = std::str::from_utf8(text).ok()?;
        Some(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
    };
    payload.as_bytes().chunks_exact(32).filter_map(of_hex).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_back_and_rubbish_is_passed_over() {
        let hashes = BTreeSet::from([[0; 16], [7; 16], [0xfe; 16]]);
        assert_eq!(read(&written(hashes.clone())).into_iter().collect::<BTreeSet<_>>(), hashes);
        assert!(written(BTreeSet::from_iter((0..HASHES_MAX as u128).map(u128::to_be_bytes))).len() < 8000);
        assert_eq!(read("rubbish"), Vec::<[u8; 16]>::new());
        assert_eq!(read(&"é".repeat(64)), Vec::<[u8; 16]>::new());
    }
}
