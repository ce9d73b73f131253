//! A store with something in it, as a gate would leave it.

use std::path::Path;
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::sqlite::SqliteStore;
use semel_store::{About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Id, Settlement};

/// A store that is written to, and closed when it is dropped.
pub(crate) struct Seed {
    store: SqliteStore,
    runtime: tokio::runtime::Runtime,
}

impl Seed {
    pub(crate) fn at(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { store: SqliteStore::open(path).expect("a store"), runtime }
    }

    fn claim(&self, principal: &str, key: &str, late: Duration) -> (Id, Fence) {
        let id = Id {
            scope: Scope::of(None, Some(principal), Some("pay")),
            key: Key::parse(&Format::Printable255, key).expect("a key"),
        };
        let request = ClaimRequest {
            id: id.clone(),
            how: Claim::New,
            replaces: None,
            nonce: 1,
            lease: Duration::from_millis(1),
            late,
            guarantee: Guarantee::Fenced,
            fingerprint: None,
            payload_hash: None,
            rotation: None,
            about: About {
                endpoint: "pay".to_owned(),
                principal: principal.to_owned(),
                request_id: format!("req-{key}"),
                ..About::default()
            }
            .into(),
            terms: None,
        };
        match self.runtime.block_on(self.store.claim(request)).expect("the store answers") {
            ClaimOutcome::Won { fence, .. } => (id, fence),
            other => panic!("expected to win, found {other:?}"),
        }
    }

    /// An unknown outcome that may still take effect for so long; returns its record's id.
    pub(crate) fn unknown(&self, principal: &str, key: &str, late: Duration) -> String {
        let (id, fence) = self.claim(principal, key, late);
        self.settle(&id, fence, Settlement::Unknown);
        fence.number.to_string()
    }

    /// A settled record; returns its id.
    pub(crate) fn settled(&self, principal: &str, key: &str) -> String {
        let (id, fence) = self.claim(principal, key, Duration::ZERO);
        let answer =
            Answer { status: 201, headers: [].into(), body: "secret".into(), outcome_unknown: false };
        self.settle(&id, fence, Settlement::Settle(answer));
        fence.number.to_string()
    }

    /// A failure that is kept, and after which nobody knows whether it took effect; returns its id.
    pub(crate) fn failed(&self, principal: &str, key: &str) -> String {
        let (id, fence) = self.claim(principal, key, Duration::ZERO);
        let answer = Answer { status: 500, headers: [].into(), body: "".into(), outcome_unknown: true };
        self.settle(&id, fence, Settlement::Settle(answer));
        fence.number.to_string()
    }

    fn settle(&self, id: &Id, fence: Fence, settlement: Settlement) {
        let lifetime = presets::ietf().lifetime;
        let settled = self.store.settle(id, fence, settlement, &lifetime);
        self.runtime.block_on(settled).expect("the store answers");
    }
}
