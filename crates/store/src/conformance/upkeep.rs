//! Sweeping, forgetting, listing, and clocks that are wrong.

use super::*;

/// Live claims and unknown outcomes stay, whatever their age.
pub async fn a_sweep_removes_only_what_is_finished_and_expired(fixture: &impl Fixture) {
    let store = fixture.store();
    let (done, unknown, fresh) = (id("alice"), id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&done)).await;
    settle(&*store, &done, fence, settled("old")).await;
    let fence = won(&*store, claim_request(&unknown)).await;
    settle(&*store, &unknown, fence, Settlement::Unknown).await;
    fixture.advance(past(lifetime().record())).await;
    let fence = won(&*store, claim_request(&fresh)).await;
    let sweep = async |grace| store.sweep(100_000, grace).await.expect("the store answers");
    sweep(Duration::from_secs(60)).await;
    assert_eq!(standing(&*store, &done).await, Standing::Expired, "it stays during the grace");
    assert!(sweep(Duration::ZERO).await.removed >= 1);
    assert_eq!(standing(&*store, &done).await, Standing::Absent);
    assert_eq!(standing(&*store, &unknown).await, Standing::Unknown);
    assert_eq!(standing(&*store, &fresh).await, Standing::Claimed);
    assert_eq!(settle(&*store, &fresh, fence, settled("new")).await, FencedWrite::Done);
}

/// Never one huge delete.
pub async fn a_sweep_is_bounded(fixture: &impl Fixture) {
    let store = fixture.store();
    for _ in 0..7 {
        let id = id("alice");
        let fence = won(&*store, claim_request(&id)).await;
        settle(&*store, &id, fence, settled("old")).await;
    }
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(store.sweep(5, Duration::ZERO).await.expect("the store answers").removed, 5);
}

/// So that lists and metrics tell the truth, and nothing stands in the way for ever.
pub async fn a_sweep_marks_lapsed_claims_and_frees_abandoned_ones(fixture: &impl Fixture) {
    let store = fixture.store();
    let (fenced, atomic) = (id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&fenced)).await;
    let abandoned =
        won(&*store, ClaimRequest { guarantee: Guarantee::Atomic, ..claim_request(&atomic) }).await;
    fixture.advance(past(LEASE)).await;
    let swept = store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert!(swept.unknown >= 1 && swept.released >= 1, "{swept:?}");
    let found = entry(&*store, &fenced).await;
    assert_eq!((found.record.state, found.record.fence), (State::Unknown, fence));
    assert_eq!(standing(&*store, &atomic).await, Standing::Absent);
    assert_eq!(settle(&*store, &atomic, abandoned, settled("late")).await, FencedWrite::Superseded);
}

/// Erasure reaches what is finished; the rest once it is.
pub async fn forgetting_a_principal_leaves_claims_and_others(fixture: &impl Fixture) {
    let store = fixture.store();
    let (hers, open, his) = (id("alice"), id("alice"), id("bob"));
    let by = |id: &Id, principal: &str| ClaimRequest {
        about: About { principal: principal.to_owned(), ..About::default() }.into(),
        ..claim_request(id)
    };
    let alice = format!("alice-{}", nonce());
    let fence = won(&*store, by(&hers, &alice)).await;
    settle(&*store, &hers, fence, settled("x")).await;
    won(&*store, by(&open, &alice)).await;
    let fence = won(&*store, by(&his, "bob")).await;
    settle(&*store, &his, fence, settled("x")).await;
    let namesake = id("alice");
    let acme = About { principal: alice.clone(), tenant: Some("acme".to_owned()), ..About::default() };
    let fence = won(&*store, ClaimRequest { about: acme.into(), ..claim_request(&namesake) }).await;
    settle(&*store, &namesake, fence, settled("x")).await;
    assert_eq!(store.forget(None, &alice, "carol").await.expect("the store answers"), 1);
    let bare = entry(&*store, &hers).await;
    assert_eq!(standing(&*store, &hers).await, Standing::Unkept, "its key does not run again");
    assert_eq!((&*bare.about, bare.record.payload_hash), (&About::default(), None));
    assert!(bare.record.fingerprint.is_none());
    let answer = bare.answer.expect("an answer that is not kept");
    assert_eq!((answer.status, answer.headers.len(), answer.body.len()), (0, 0, 0), "nothing of it is left");
    assert!(matches!(store.claim(claim_request(&hers)).await, Ok(ClaimOutcome::Known { .. })));
    assert_eq!(standing(&*store, &open).await, Standing::Claimed);
    assert_eq!(standing(&*store, &his).await, Standing::Settled);
    assert_eq!(standing(&*store, &namesake).await, Standing::Settled, "another tenant's is another person");
    assert_eq!(store.forget(Some("acme"), &alice, "carol").await, Ok(1));
    assert_eq!(store.forget(None, &alice, "carol").await, Ok(0), "it is nobody's by now");
    assert_eq!(store.forget(None, "", "carol").await, Ok(0), "nobody is called that");
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(standing(&*store, &hers).await, Standing::Expired);
    store.sweep(100_000, Duration::ZERO).await.expect("the store answers");
    assert_eq!(standing(&*store, &hers).await, Standing::Absent, "nothing stays for ever");
}

/// Erasure turns neither an outcome that nobody knows nor a refusal into an effect.
pub async fn forgetting_says_nothing_of_an_outcome_that_is_not_so(fixture: &impl Fixture) {
    let store = fixture.store();
    let principal = format!("alice-{}", nonce());
    let about = About { principal: principal.clone(), ..About::default() };
    let answers = [(500, true), (503, false), (404, false), (201, false)];
    let mut ids = Vec::new();
    for (status, outcome_unknown) in answers {
        let id = id("alice");
        let fence = won(&*store, ClaimRequest { about: about.clone().into(), ..claim_request(&id) }).await;
        let answer = Answer { status, headers: [].into(), body: "hers".into(), outcome_unknown };
        settle(&*store, &id, fence, Settlement::Settle(answer)).await;
        ids.push(id);
    }
    assert_eq!(store.forget(None, &principal, "carol").await, Ok(4));
    let mut left = Vec::new();
    for id in &ids {
        let bare = entry(&*store, id).await;
        assert_eq!(standing(&*store, id).await, Standing::Unkept);
        let answer = bare.answer.expect("an answer that is not kept");
        assert_eq!((answer.headers.len(), answer.body.len()), (0, 0), "nothing of it is left");
        left.push((answer.status, answer.outcome_unknown));
    }
    assert_eq!(left, [(500, true), (503, true), (404, false), (0, false)]);
}

/// By state, principal and endpoint; page by page.
pub async fn lists_are_filtered_and_paged(fixture: &impl Fixture) {
    let store = fixture.store();
    let principal = format!("lister-{}", nonce());
    let mut fences = Vec::new();
    for at in 0..5 {
        let id = id("alice");
        let about = About {
            endpoint: format!("endpoint-{}", at % 2),
            principal: principal.clone(),
            ..About::default()
        };
        let fence = won(&*store, ClaimRequest { about: about.into(), ..claim_request(&id) }).await;
        if at % 2 == 0 {
            settle(&*store, &id, fence, settled("x")).await;
        }
        fences.push(fence);
    }
    let filter = Filter { principal: Some(principal), limit: 10, ..Filter::default() };
    let list = async |filter: Filter| {
        let found = store.list(&filter).await.expect("the store answers");
        found.into_iter().map(|entry| entry.record.fence).collect::<Vec<_>>()
    };
    assert_eq!(list(filter.clone()).await, fences);
    assert_eq!(
        list(Filter { state: Some(State::Settled), ..filter.clone() }).await,
        [fences[0], fences[2], fences[4]]
    );
    assert_eq!(list(Filter { state: Some(State::Claimed), ..filter.clone() }).await, [fences[1], fences[3]]);
    assert_eq!(
        list(Filter { endpoint: Some("endpoint-1".to_owned()), ..filter.clone() }).await,
        [fences[1], fences[3]]
    );
    assert_eq!(list(Filter { limit: 2, ..filter.clone() }).await, fences[..2]);
    assert_eq!(list(Filter { after: Some(fences[1].number), ..filter.clone() }).await, fences[2..]);
    let newest = Filter { order: Order::NewestFirst, ..filter };
    let back: Vec<_> = fences.iter().rev().copied().collect();
    assert_eq!(list(newest.clone()).await, back);
    assert_eq!(list(Filter { limit: 2, ..newest.clone() }).await, back[..2]);
    assert_eq!(list(Filter { after: Some(back[1].number), limit: 2, ..newest.clone() }).await, back[2..4]);
    assert_eq!(list(Filter { state: Some(State::Claimed), ..newest.clone() }).await, [fences[3], fences[1]]);
    let of_all = Filter { principal: None, limit: 3, ..newest };
    assert_eq!(list(Filter { after: Some(back[0].number + 1), ..of_all }).await, back[..3], "of everybody's");
}

/// A claim stays held and a settled record stays settled.
pub async fn a_clock_set_back_never_revives_or_repeats(fixture: &impl Fixture) {
    let store = fixture.store();
    let (held, done) = (id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&done)).await;
    settle(&*store, &done, fence, settled("x")).await;
    won(&*store, claim_request(&held)).await;
    if !fixture.set_wall_off(-86_400_000 * 30).await {
        return;
    }
    let (_, before) = store.look_up(&held).await.expect("the store answers");
    assert_eq!(standing(&*store, &held).await, Standing::Claimed);
    fixture.advance(past(LEASE)).await;
    let (_, after) = store.look_up(&held).await.expect("the store answers");
    assert!(after.millis_since(before) >= 30_000, "time goes on as it ticks");
    assert_eq!(standing(&*store, &held).await, Standing::Unknown);
    assert_eq!(standing(&*store, &done).await, Standing::Settled);
}

/// A wrong clock must not make a request run again.
pub async fn a_clock_set_forward_never_expires_anything(fixture: &impl Fixture) {
    let store = fixture.store();
    let (held, done, expired) = (id("alice"), id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&expired)).await;
    settle(&*store, &expired, fence, settled("x")).await;
    fixture.advance(past(lifetime().record())).await;
    let fence = won(&*store, claim_request(&done)).await;
    settle(&*store, &done, fence, settled("x")).await;
    won(&*store, claim_request(&held)).await;
    if !fixture.set_wall_off(86_400_000 * 30).await {
        return;
    }
    assert_eq!(standing(&*store, &done).await, Standing::Settled);
    assert_eq!(standing(&*store, &held).await, Standing::Claimed);
    assert_eq!(standing(&*store, &expired).await, Standing::Expired);
    let swept = store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert_eq!(
        swept.removed, 0,
        "nothing is swept while nobody has confirmed the clock, not even what is expired"
    );
}
