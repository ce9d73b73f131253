//! What must be true of a store that an older release filled, once this release has opened it. The frozen fixtures hold
//! one key of every state.

use std::time::Duration;

use semel_contract::decide::{Claim, Standing};
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::{
    ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Filter, Id, Resolution, Resolved, Settlement,
};

fn id(key: &str) -> Id {
    Id {
        scope: Scope::of(None, Some("alice"), Some("create-order")),
        key: Key::parse(&Format::Printable255, key).expect("a printable key"),
    }
}

/// The highest number that the older release gave.
const LAST_FENCE: u64 = 8;

/// Nothing is lost, and everything goes on.
pub(crate) async fn holds(store: &dyn ClaimStore) {
    for (key, standing) in [
        ("settled", Standing::Settled),
        ("unkept", Standing::Unkept),
        ("released", Standing::Released),
        ("unknown", Standing::Unknown),
        ("resolved", Standing::Settled),
        ("sealed", Standing::Sealed),
        ("claimed", Standing::Unknown),
    ] {
        let (entry, now) = store.look_up(&id(key)).await.expect("the store answers");
        let entry = entry.unwrap_or_else(|| panic!("{key} is lost"));
        assert_eq!(Standing::of(Some(&entry.record), now), standing, "{key}");
        assert_eq!(
            (entry.about.principal.as_str(), entry.about.endpoint.as_str()),
            ("alice", "create-order")
        );
    }
    let (entry, _) = store.look_up(&id("settled")).await.expect("the store answers");
    let entry = entry.expect("it was there");
    let answer = entry.answer.expect("its answer is kept");
    assert_eq!((answer.status, answer.body.as_ref(), answer.headers.len()), (201, b"order 1".as_slice(), 3));
    assert_eq!(entry.about.headers, [("x-device".to_owned(), "d-1".to_owned())]);
    assert_eq!(entry.record.payload_hash, Some([7; 32]));

    let lifetime = presets::ietf().lifetime;
    let (entry, _) = store.look_up(&id("unknown")).await.expect("the store answers");
    let fence = entry.expect("it was there").record.fence;
    let resolved =
        store.resolve(&id("unknown"), fence, Resolution::Applied(None), &lifetime, "carol", "asked").await;
    assert_eq!(resolved, Ok(Resolved::Done));
    // The holder of the last claim, if it is still there, may settle.
    let holder = Fence { number: LAST_FENCE, nonce: 0xa5 };
    let settled = store.settle(&id("claimed"), holder, Settlement::Release, &lifetime).await;
    assert_eq!(settled, Ok(FencedWrite::Done));
    let request = ClaimRequest {
        id: id("new"),
        how: Claim::New,
        replaces: None,
        nonce: 1,
        lease: Duration::from_secs(30),
        late: Duration::from_secs(60),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: std::sync::Arc::default(),
    };
    let claimed = store.claim(request).await.expect("the store answers");
    assert!(matches!(claimed, ClaimOutcome::Won { fence, .. } if fence.number > LAST_FENCE), "{claimed:?}");
    let listed = store.list(&Filter { limit: 100, ..Filter::default() }).await.expect("the store lists");
    assert_eq!(listed.len(), 7, "six of old and one new");
}
