//! The forms of a gate's keys, and the marks by which a key is found in another form.

use super::*;
use crate::forms::{FORM_MARGIN, FORM_PAUSE, Form};

/// A key that is known in another form is found by its mark.
pub async fn a_mark_of_rotation_is_found_by_others(fixture: &impl Fixture) {
    let store = fixture.store();
    let (own, other) = (id("alice"), id("alice"));
    let mut mark = [7; 16];
    mark[..8].copy_from_slice(&nonce().to_be_bytes());
    let is_marked = async |id: &Id| store.is_marked(mark, id).await.expect("the store answers");
    assert!(!is_marked(&other).await);
    let fence = won(&*store, ClaimRequest { rotation: Some(mark), ..claim_request(&own) }).await;
    assert!(is_marked(&other).await, "while it is claimed");
    assert!(!is_marked(&own).await, "it is not another's");
    settle(&*store, &own, fence, settled("done")).await;
    assert!(is_marked(&other).await, "once it is settled");
    assert!(!is_marked(&own).await);
    fixture.advance(past(lifetime().record())).await;
    assert!(!is_marked(&other).await, "not once it has expired");
}

/// Many keys and marks are asked about at once; the answer is that to each.
pub async fn what_is_known_among_several_is_what_is_known_of_each(fixture: &impl Fixture) {
    let store = fixture.store();
    let (absent, claimed, released, done) = (id("alice"), id("alice"), id("alice"), id("alice"));
    let mark = || {
        let mut mark = [9; 16];
        mark[..8].copy_from_slice(&nonce().to_be_bytes());
        mark
    };
    let (known, unknown) = (mark(), mark());
    won(&*store, ClaimRequest { rotation: Some(known), ..claim_request(&claimed) }).await;
    let fence = won(&*store, claim_request(&released)).await;
    let kept = Lifetime { released: Some(lifetime().record()), ..lifetime() };
    let written = store.settle(&released, fence, Settlement::Release, &kept).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    let fence = won(&*store, claim_request(&done)).await;
    settle(&*store, &done, fence, settled("done")).await;
    let ids = [absent.clone(), claimed.clone(), released, done];
    let marks = [(known, absent.clone()), (known, claimed), (unknown, absent)];
    let found = store.known_among(&ids, &marks).await.expect("the store answers");
    assert_eq!(found.ids, [false, true, false, true], "what was released does not count");
    assert_eq!(found.marks, [true, false, false]);
    fixture.advance(past(lifetime().record())).await;
    let later = store.known_among(&ids, &[]).await.expect("the store answers");
    assert_eq!((later.ids, later.marks), (vec![false, true, false, false], Vec::new()));
}

/// A key whose outcome is unknown does not expire, nor may the form in which it is found.
pub async fn a_form_is_known_while_an_outcome_in_it_is_not(fixture: &impl Fixture) {
    let store = fixture.store();
    let gate = format!("gate-{}", nonce());
    let form = |text: &str| Form { text: text.to_owned(), kept: lifetime().record(), ahead: Duration::ZERO };
    let is_known = async || {
        let known = store.register_forms(&gate, &[form("now")]).await.expect("the store answers").known;
        known.iter().any(|form| form.text == "before")
    };
    store.register_forms(&gate, &[form("before")]).await.expect("the store answers");
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    settle(&*store, &id, fence, Settlement::Unknown).await;
    let long = past(lifetime().record()) + FORM_MARGIN * 2;
    for _ in 0..3 {
        fixture.advance(long).await;
        assert!(is_known().await, "nobody knows what came of it");
    }
    let applied = Resolution::Applied(None);
    let resolved = store.resolve(&id, fence, applied, &lifetime(), "carol", "asked").await;
    assert_eq!(resolved, Ok(Resolved::Done));
    fixture.advance(lifetime().record() - Duration::from_secs(60)).await;
    assert!(is_known().await, "what is known since lives for one lifetime");
    fixture.advance(long).await;
    assert!(!is_known().await, "and no longer");
}

/// Registered again it keeps its first time; a pause is noticed; nothing is kept for ever.
pub async fn forms_are_known_until_their_records_have_expired(fixture: &impl Fixture) {
    let store = fixture.store();
    let (gate, other) = (format!("gate-{}", nonce()), format!("gate-{}", nonce()));
    let form = |text: &str| Form {
        text: text.to_owned(),
        kept: Duration::from_secs(24 * 3600),
        ahead: Duration::ZERO,
    };
    let register = async |gate: &str, forms: &[Form]| {
        store.register_forms(gate, forms).await.expect("the store answers")
    };
    assert_eq!(register(&gate, &[]).await.known, []);
    register(&other, &[form("another gate's")]).await;
    let first = register(&gate, &[form("a"), form("b")]).await;
    let texts =
        |forms: &crate::forms::Forms| forms.known.iter().map(|form| form.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&first), ["a", "b"]);
    let since = first.known[0].first_at;
    fixture.advance(Duration::from_secs(60)).await;
    let again = register(&gate, &[form("b"), form("c")]).await;
    assert_eq!(texts(&again), ["a", "b", "c"]);
    assert_eq!((again.known[1].first_at, again.known[1].since), (since, since));
    assert!(again.known[1].last_at > since && again.known[0].last_at == since);
    fixture.advance(FORM_PAUSE * 2).await;
    let paused = register(&gate, &[form("b")]).await;
    assert_eq!(paused.known[1].first_at, since);
    assert!(paused.known[1].since > since, "it was not claimed in meanwhile");
    fixture.advance(Duration::from_secs(24 * 3600)).await;
    assert_eq!(texts(&register(&gate, &[form("c")]).await), ["a", "b", "c"], "there is a margin");
    fixture.advance(Duration::from_secs(3600)).await;
    assert_eq!(texts(&register(&gate, &[form("c")]).await), ["c"]);
    let ahead = Form { ahead: Duration::from_secs(3600), ..form("d") };
    let ahead = register(&gate, &[ahead]).await;
    assert!(ahead.known.iter().any(|form| form.last_at > ahead.now));
}
