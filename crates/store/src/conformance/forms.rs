//! The forms of a gate's keys, and the marks by which a key is found in another form.

use super::*;
use crate::claims::{FORM_PAUSE, Form};

/// A key that is known in another form is found by its mark.
pub async fn a_mark_of_rotation_is_found_by_others(fixture: &impl Fixture) {
    let store = fixture.store();
    let (own, other) = (id("alice"), id("alice"));
    let mut mark = [7; 16];
    mark[..8].copy_from_slice(&nonce().to_be_bytes());
    let is_marked = async |id: &Id| store.is_marked(mark, id).await.expect("the store answers");
    assert!(!is_marked(&other).await);
    let fence = won(&*store, Wish { rotation: Some(mark), ..wish(&own) }).await;
    assert!(is_marked(&other).await, "while it is claimed");
    assert!(!is_marked(&own).await, "it is not another's");
    settle(&*store, &own, fence, settled("done")).await;
    assert!(is_marked(&other).await, "once it is settled");
    assert!(!is_marked(&own).await);
    fixture.advance(past(lifetime().record())).await;
    assert!(!is_marked(&other).await, "not once it has expired");
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
    let texts = |forms: &crate::Forms| forms.known.iter().map(|form| form.text.clone()).collect::<Vec<_>>();
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
