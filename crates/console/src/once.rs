//! What a form does, once: the number that a form carries stands for what became of it, however often it is sent. A form also
//! carries a seal of this process, so that none is accepted that was not shown to the one who sends it.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use semel_contract::hex::hex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::access::{Caller, Door, random};

/// Outcomes that are kept; older forms are refused.
const KEPT_MAX: usize = 2000;

/// What became of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_done: bool,
    /// It was refused, nothing was done, and the same form may be sent again.
    pub(crate) is_refused: bool,
    pub(crate) text: String,
    /// Where it is shown.
    pub(crate) page: String,
}

/// What a form was sent with, and what came of it.
#[derive(Clone)]
struct Waiting {
    content: [u8; 32],
    outcome: watch::Receiver<Option<Outcome>>,
}

/// Why a form has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoOutcome {
    /// It was sent before, with other values, and acted.
    OtherContent,
    /// Nobody knows what came of it.
    Unknown,
}

/// The forms of a process.
pub(crate) struct Forms {
    secret: [u8; 32],
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    outcomes: HashMap<String, Waiting>,
    order: VecDeque<String>,
    /// Forms that were given out.
    given: u64,
    /// Forms up to this one are refused: what became of some of them is not known any more.
    floor: u64,
}

impl Default for Forms {
    fn default() -> Self {
        Self { secret: random(), known: Mutex::default() }
    }
}

/// The how manieth form this is.
fn place(nonce: &str) -> Option<u64> {
    u64::from_str_radix(nonce.get(..16)?, 16).ok()
}

impl Forms {
    fn locked(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new form, with its seal: for this caller and this action alone.
    pub(crate) fn new_number(&self, caller: &Caller, action: &str) -> String {
        let at = {
            let mut known = self.locked();
            known.given += 1;
            known.given
        };
        let nonce = format!("{at:016x}{}", hex(&random()[..16]));
        let seal = self.seal(caller, action, &nonce);
        format!("{nonce}.{seal}")
    }

    /// Whether this process gave the number to this caller for this action.
    pub(crate) fn is_ours(&self, number: &str, caller: &Caller, action: &str) -> bool {
        use subtle::ConstantTimeEq;
        let Some((nonce, seal)) = number.split_once('.') else { return false };
        if place(nonce).is_none_or(|at| at <= self.locked().floor) {
            return false;
        }
        self.seal(caller, action, nonce).as_bytes().ct_eq(seal.as_bytes()).into()
    }

    fn seal(&self, caller: &Caller, action: &str, nonce: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("a key of any length will do");
        let who: &[u8] = match &caller.door {
            Door::Session(id) => id,
            Door::Open | Door::Within | Door::Stranger => b"open",
            Door::Token => b"token",
            Door::Trusted => caller.actor.as_bytes(),
        };
        for part in [who, action.as_bytes(), nonce.as_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        hex(&mac.finalize().into_bytes())
    }

    /// Does it, or waits for whoever does, or says what became of it. It is done to its end also where nobody waits. What was
    /// refused is tried again: nothing was done. What acted stands for its own content alone.
    pub(crate) async fn once(
        &self,
        number: &str,
        content: &str,
        act: impl Future<Output = Outcome> + Send + 'static,
    ) -> Result<Outcome, NoOutcome> {
        let content: [u8; 32] = Sha256::digest(content.as_bytes()).into();
        let mut waiting = {
            let mut known = self.locked();
            let before = known.outcomes.get(number).filter(|before| !before.is_refused()).cloned();
            match before {
                Some(before) if before.content != content => return Err(NoOutcome::OtherContent),
                Some(before) => before.outcome,
                None => {
                    let (tell, outcome) = watch::channel(None);
                    tokio::spawn(async move { drop(tell.send(Some(act.await))) });
                    known.keep(number, Waiting { content, outcome: outcome.clone() });
                    outcome
                }
            }
        };
        let outcome = waiting.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.ok_or(NoOutcome::Unknown)
    }

    /// What became of a form.
    pub(crate) fn outcome(&self, number: &str) -> Option<Outcome> {
        self.locked().outcomes.get(number).and_then(|waiting| waiting.outcome.borrow().clone())
    }
}

impl Waiting {
    fn is_refused(&self) -> bool {
        self.outcome.borrow().as_ref().is_some_and(|outcome| outcome.is_refused)
    }
}

impl Known {
    fn keep(&mut self, number: &str, waiting: Waiting) {
        if self.outcomes.insert(number.to_owned(), waiting).is_some() {
            return;
        }
        self.order.push_back(number.to_owned());
        if self.order.len() > KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.floor = self.floor.max(place(&oldest).unwrap_or(u64::MAX));
            self.outcomes.remove(&oldest);
        }
    }
}

impl std::fmt::Debug for Forms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forms")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::access::Right;

    fn caller(door: Door) -> Caller {
        Caller { right: Right::Change, actor: "alice".to_owned(), door }
    }

    #[tokio::test]
    async fn a_form_acts_once_however_often_it_comes() {
        let (forms, acts) = (Forms::default(), Arc::new(AtomicU32::new(0)));
        let number = forms.new_number(&caller(Door::Open), "gate/sweep");
        let act = || {
            let acts = Arc::clone(&acts);
            async move {
                acts.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Outcome { is_done: true, is_refused: false, text: "done".to_owned(), page: "/".to_owned() }
            }
        };
        // Whoever clicked first is gone before it is done.
        drop(forms.once(&number, "a=1", act()));
        let (one, other) = tokio::join!(forms.once(&number, "a=1", act()), forms.once(&number, "a=1", act()));
        assert_eq!((one, acts.load(Ordering::SeqCst)), (other, 1));
        assert!(forms.outcome(&number).is_some_and(|outcome| outcome.is_done));
        assert_eq!(forms.once(&number, "a=2", act()).await, Err(NoOutcome::OtherContent));
        assert_eq!(acts.load(Ordering::SeqCst), 1, "what became of one is not what became of another");
    }

    #[tokio::test]
    async fn what_was_refused_may_be_sent_again() {
        let forms = Forms::default();
        let number = forms.new_number(&caller(Door::Open), "gate/sweep");
        let outcome = |is_done: bool| async move {
            Outcome { is_done, is_refused: !is_done, text: String::new(), page: String::new() }
        };
        assert_eq!(forms.once(&number, "a=1", outcome(false)).await.map(|it| it.is_done), Ok(false));
        assert_eq!(forms.once(&number, "a=2", outcome(true)).await.map(|it| it.is_done), Ok(true));
        assert_eq!(forms.once(&number, "a=1", outcome(true)).await, Err(NoOutcome::OtherContent));
    }

    #[tokio::test]
    async fn a_form_is_its_callers_and_its_actions_and_is_not_forgotten_silently() {
        let forms = Forms::default();
        let (open, session) = (caller(Door::Open), caller(Door::Session([7; 32])));
        let number = forms.new_number(&open, "gate/sweep");
        assert!(forms.is_ours(&number, &open, "gate/sweep"));
        assert!(
            !forms.is_ours(&number, &open, "gate/forget") && !forms.is_ours(&number, &session, "gate/sweep")
        );
        assert!(!Forms::default().is_ours(&number, &open, "gate/sweep"), "another process");
        for tampered in ["", ".", "x.y", &number.replace('.', "0.")] {
            assert!(!forms.is_ours(tampered, &open, "gate/sweep"), "{tampered}");
        }
        for _ in 0..=KEPT_MAX {
            let number = forms.new_number(&open, "gate/sweep");
            let outcome =
                Outcome { is_done: true, is_refused: false, text: String::new(), page: String::new() };
            assert!(forms.once(&number, "", async move { outcome }).await.is_ok());
        }
        assert!(!forms.is_ours(&number, &open, "gate/sweep"), "what became of it is not known any more");
    }
}
