//! Records that were read stay in memory, and never tell what is no longer so.

use super::faults::recovered;
use super::*;

/// What the store tells of a key, read twice: the second time it has it in memory.
async fn told(store: &SqliteStore, id: &Id) -> Option<Bytes> {
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let (entry, _) = store.look_up(id).await.expect("the store answers");
        bodies.push(entry.map(|entry| entry.answer.expect("it is settled").body));
    }
    assert_eq!(bodies[0], bodies[1], "memory and file say the same");
    bodies.pop().flatten()
}

#[tokio::test]
async fn what_was_erased_is_not_told_from_memory() {
    let sqlite = Sqlite::new();
    let (store, id) = (&sqlite.store, id("order"));
    let fence = won(store, &id, Guarantee::Fenced).await;
    settle(store, &id, fence, settled("x")).await;
    assert_eq!(told(store, &id).await, Some(Bytes::from("x")));
    assert_eq!(store.forget(None, "alice", "an operator").await, Ok(1));
    assert_eq!(told(store, &id).await, Some(Bytes::new()), "only that the key was used");
}

#[tokio::test]
async fn after_an_erasure_of_unknown_commit_the_file_is_asked() {
    for written in [true, false] {
        let sqlite = Sqlite::new();
        let (store, id) = (&sqlite.store, id("order"));
        let fence = won(store, &id, Guarantee::Fenced).await;
        settle(store, &id, fence, settled("x")).await;
        assert_eq!(told(store, &id).await, Some(Bytes::from("x")));
        store.faults().lose_next_commit(written);
        assert!(is_unknown(&store.forget(None, "alice", "an operator").await));
        recovered(store).await;
        assert_eq!(
            told(store, &id).await,
            Some(Bytes::from(if written { "" } else { "x" })),
            "written: {written}"
        );
    }
}

#[tokio::test]
async fn what_takes_the_place_of_an_expired_record_is_told_in_its_place() {
    let sqlite = Sqlite::new();
    let (store, id) = (&sqlite.store, id("order"));
    let first = won(store, &id, Guarantee::Fenced).await;
    settle(store, &id, first, settled("x")).await;
    assert_eq!(told(store, &id).await, Some(Bytes::from("x")));
    sqlite.clock.advance(lifetime().record() + Duration::from_secs(1));
    assert_eq!(standing(store, &id).await, Standing::Expired, "also in memory it expires");
    let taken_over =
        ClaimRequest { how: Claim::TakeOver, replaces: Some(first), ..claim_request(&id, Guarantee::Fenced) };
    let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(taken_over).await else {
        panic!("an expired record is taken over");
    };
    assert_eq!(standing(store, &id).await, Standing::Claimed);
    settle(store, &id, fence, settled("y")).await;
    assert_eq!(told(store, &id).await, Some(Bytes::from("y")));
}
