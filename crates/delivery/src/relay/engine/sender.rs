//! By whose credential a lane is written, and what holds that principal up.

use std::collections::BTreeMap;

use semel_contract::hex::hex;
use semel_contract::time::millis_of;

use super::{LaneOutcome, PATIENCE, Turn};
use crate::credentials::Credential;
use crate::relay::policy::Scope;
use crate::relay::store::StoreError;
use crate::relay::store::hold::{NO_CREDENTIAL, refusal_scope};

/// Who sends.
pub(super) struct Sender {
    pub(super) principal: String,
    pub(super) credential: Option<Credential>,
}

/// Tells credentials apart; none at all is one of them.
pub(super) fn digest(credential: Option<&Credential>) -> String {
    credential.map_or_else(|| NO_CREDENTIAL.to_owned(), |credential| hex(&credential.digest()))
}

impl Sender {
    pub(super) fn digest(&self) -> String {
        digest(self.credential.as_ref())
    }
}

/// Who may send now.
pub(super) enum Choice {
    Sender(Sender),
    /// Nobody; the turn has ended like this.
    Ended(LaneOutcome),
}

impl Turn<'_> {
    /// What holds up all calls of the target, if anything does.
    pub(super) async fn held_up(&self) -> Result<Option<i64>, StoreError> {
        Ok(self.engine.store.paused(&self.scopes(), self.now()).await?.values().copied().max())
    }

    /// What all calls of the target share.
    fn scopes(&self) -> [String; 2] {
        let (name, origin) = (&self.target.name, self.target.upstream.origin());
        [Scope::Target.key(name, "", origin), Scope::Host.key(name, "", origin)]
    }

    /// Chooses among these principals, the first that may send. What a principal has waiting whose credential is known to
    /// be refused is parked on the way.
    pub(super) async fn choose(&self, principals: &[String]) -> Result<Choice, StoreError> {
        let store = &self.engine.store;
        let (name, origin) = (&self.target.name, self.target.upstream.origin());
        let key = |principal: &String| Scope::Credential.key(name, principal, origin);
        let of_all = self.scopes();
        let refusal = |principal: &String| refusal_scope(name, principal);
        let of_principals = principals.iter().flat_map(|principal| [key(principal), refusal(principal)]);
        let scopes: Vec<String> = of_all.iter().cloned().chain(of_principals).collect();
        let paused = store.paused(&scopes, self.now()).await?;
        if let Some(until) = of_all.iter().filter_map(|scope| paused.get(scope)).max() {
            return Ok(Choice::Ended(self.waits("the target is paused", *until).await?));
        }
        let refused: BTreeMap<String, String> = store.refused(name, principals).await?;
        let mut due = self.now() + millis_of(PATIENCE);
        let mut why = "no principal has a credential".to_owned();
        for principal in principals {
            if let Some(until) = paused.get(&key(principal)) {
                due = due.min(*until);
                why = "the credential is paused".to_owned();
                continue;
            }
            if let Some(known) = refused.get(principal).filter(|_| paused.contains_key(&refusal(principal))) {
                // Many were refused in a row: another one is not even asked for yet.
                let written = store.park(&self.work.hold, principal, known, self.target.reducer).await?;
                return Ok(Choice::Ended(self.done(written, LaneOutcome::Again)));
            }
            let credential = match self.engine.credentials.credential_for(principal, name, origin).await {
                Ok(credential) => credential,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            let sender = Sender { principal: principal.clone(), credential };
            match refused.get(principal) {
                Some(known) if *known == sender.digest() => {
                    let written = store.park(&self.work.hold, principal, known, self.target.reducer).await?;
                    return Ok(Choice::Ended(self.done(written, LaneOutcome::Again)));
                }
                Some(_) => {
                    self.engine.release_by_itself(name, principal).await?;
                    return Ok(Choice::Sender(sender));
                }
                None => return Ok(Choice::Sender(sender)),
            }
        }
        Ok(Choice::Ended(self.waits(&why, due).await?))
    }
}
