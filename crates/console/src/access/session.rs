//! Sign-ins: a random number in a cookie stands for a token, for an hour without a click and eight hours at most. Kept in
//! memory, as hashes; a process that starts anew asks again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use semel_contract::hex::hex;
use sha2::{Digest, Sha256};

use super::Right;

/// How long a sign-in lasts without a click.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// How long a sign-in lasts.
pub(crate) const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// Sign-ins that are kept; the one that was idle longest makes room.
const SESSIONS_MAX: usize = 1000;

#[derive(Debug)]
struct Session {
    right: Right,
    /// The hash of the token it was opened with.
    token: [u8; 32],
    opened: Instant,
    used: Instant,
}

/// The sign-ins of a process.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

/// Random bytes that nobody can guess.
pub(crate) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    bytes
}

impl Sessions {
    fn locked(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens one; says what the cookie holds.
    pub(crate) fn open(&self, right: Right, token: [u8; 32]) -> String {
        let value = hex(&random());
        let now = Instant::now();
        let mut sessions = self.locked();
        sessions.retain(|_, session| session.is_open(now));
        if sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(digest(&value), Session { right, token, opened: now, used: now });
        value
    }

    /// The session of a cookie: its number, what it allows, and the token it stands for.
    pub(crate) fn find(&self, value: &str) -> Option<([u8; 32], Right, [u8; 32])> {
        let (id, now) = (digest(value), Instant::now());
        let mut sessions = self.locked();
        let session = sessions.get_mut(&id).filter(|session| session.is_open(now))?;
        session.used = now;
        Some((id, session.right, session.token))
    }

    /// Ends one.
    pub(crate) fn close(&self, id: &[u8; 32]) {
        self.locked().remove(id);
    }
}

impl Session {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE_MAX && now.duration_since(self.opened) < LIFETIME
    }
}

/// Only hashes are kept, and they are what is compared.
fn digest(value: &str) -> [u8; 32] {
    Sha256::digest(value.as_bytes()).into()
}
