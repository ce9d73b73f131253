//! Once in one transaction beside everything else that a store does: gateways and their claims, seals, settlements by fence,
//! erasure, renames, rotated credentials, restored backups, expiry, limits and roles.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_contract::decide::Claim;
use semel_contract::record::State;
use semel_contract::scope::Scope;
use semel_store::{AdminStore, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Sealed, Settlement};

use crate::fixture::{AT_ONCE, LEASE, answer, claim_request, entry, id, lifetime, settled, won};
use crate::once_fixture::{ABOUT, Call, EFFECT, code, print, shop, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_and_a_transaction_exclude_each_other() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("entered");
    call.begin(&session).await;
    // A batch of claims never waits for the transaction, and the others in it are claimed.
    let started = Instant::now();
    let requests: Vec<Id> = (0..20).map(|_| id("other")).chain([call.id.clone()]).collect();
    let claims: Vec<_> = requests
        .iter()
        .map(|id| {
            let (store, request) = (Arc::clone(&shop.here.store), claim_request(id));
            tokio::spawn(async move { store.claim(request).await.expect("the store answers") })
        })
        .collect();
    let mut told = Vec::new();
    for claim in claims {
        told.push(claim.await.expect("no panic"));
    }
    assert!(started.elapsed() < AT_ONCE);
    let (entered, others) = told.split_last().expect("there are some");
    assert!(matches!(entered, ClaimOutcome::Entered), "{entered:?}");
    assert!(others.iter().all(|claimed| matches!(claimed, ClaimOutcome::Won { .. })));
    session.batch_execute(EFFECT).await.unwrap();
    call.leave(&session, 201, b"made").await.unwrap();
    assert!(
        matches!(shop.here.store.claim(claim_request(&call.id)).await, Ok(ClaimOutcome::Entered)),
        "not committed"
    );
    session.batch_execute("COMMIT").await.unwrap();
    match shop.here.store.claim(claim_request(&call.id)).await {
        Ok(ClaimOutcome::Known { entry, .. }) => {
            let kept = entry.answer.expect("it is settled");
            assert_eq!((entry.record.state, &kept.body[..]), (State::Settled, b"made".as_slice()));
        }
        other => panic!("expected its record, found {other:?}"),
    }
    // The other way: a claim of a gateway is in flight for the transaction.
    let (claimed, other) = (Call::of(requests[0].clone()), shop.session().await);
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(claimed.enter(&other).await.unwrap(), "in-flight");
    assert_eq!(claimed.look_verdict(&session).await, "in-flight");
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_gateway_its_fence_is_the_right_to_execute() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let call = Call::new("fence");
    let fence = won(&shop.here.store, claim_request(&call.id)).await;
    let fenced = call.with(&format!(r#"{{"fence": "{fence}"}}"#));
    fenced.begin(&session).await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(fenced.enter(&other).await.unwrap(), "in-flight", "the request came twice");
    other.batch_execute("ROLLBACK").await.unwrap();
    let held = [(call.id.clone(), fence)];
    assert_eq!(shop.here.store.renew(&held, LEASE).await, Ok(vec![FencedWrite::Done]), "renewals go on");
    session.batch_execute(EFFECT).await.unwrap();
    let left = fenced.leave(&session, 201, b"made").await.unwrap();
    assert_eq!(left.get::<_, &str>("fence"), fence.to_string(), "it settles the claim itself");
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(shop.here.store.renew(&held, LEASE).await, Ok(vec![FencedWrite::Superseded]));
    let found = entry(&shop.here.store, &call.id).await;
    assert_eq!((found.record.state, found.record.fence), (State::Settled, fence));
    // Whatever comes later under that fence is answered from the record; another fence never executes.
    assert_eq!(fenced.look_verdict(&other).await, "replay");
    let stale = Call::new("stale").with(&format!(r#"{{"fence": "{fence}"}}"#));
    assert_eq!(stale.look_verdict(&other).await, "stale", "there is no claim");
    won(&shop.here.store, claim_request(&stale.id)).await;
    assert_eq!(stale.look_verdict(&other).await, "stale", "another attempt holds the key");
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_that_was_taken_over_commits_nothing() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("taken-over");
    let fence = won(&shop.here.store, claim_request(&call.id)).await;
    let fenced = call.with(&format!(r#"{{"fence": "{fence}"}}"#));
    fenced.begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    let written = shop.here.store.settle(&call.id, fence, settled("by the gateway"), &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    assert_eq!(code(fenced.leave(&session, 201, b"late").await), "40001");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.effects().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_else_may_stand_under_a_key_has_its_verdict() {
    let shop = shop().await;
    let session = shop.session().await;
    let store = &shop.here.store;
    let verdict = async |call: &Call| call.look_verdict(&session).await;
    // Settled by fence, in another transaction.
    let by_fence = Call::new("settle");
    let fence = won(store, claim_request(&by_fence.id)).await;
    let settle = "SELECT semel.settle($1, 201, '{}', 'by fence')";
    session.query(settle, &[&fence.to_string()]).await.unwrap();
    assert_eq!(verdict(&by_fence).await, "replay");
    // Unknown, and released.
    let unknown = Call::new("unknown");
    let fence = won(store, claim_request(&unknown.id)).await;
    store.settle(&unknown.id, fence, Settlement::Unknown, &lifetime()).await.unwrap();
    assert_eq!(verdict(&unknown).await, "unknown");
    let lapsed = Call::new("lapsed");
    won(store, claim_request(&lapsed.id)).await;
    let atomic = Call::new("abandoned");
    won(store, crate::fixture::atomic(&atomic.id)).await;
    shop.here.pass(LEASE + Duration::from_secs(1)).await;
    assert_eq!(verdict(&lapsed).await, "unknown", "a fenced claim whose lease lapsed");
    assert_eq!(shop.run(&atomic).await.unwrap(), "execute", "an abandoned atomic claim is superseded");
    let released = Call::new("released");
    let kept = semel_contract::profile::Lifetime { released: Some(Duration::from_secs(60)), ..lifetime() };
    let fence = won(store, claim_request(&released.id)).await;
    store.settle(&released.id, fence, Settlement::Release, &kept).await.unwrap();
    assert_eq!(verdict(&released.with(r#"{"failed_key": "sealed"}"#)).await, "sealed");
    let before = entry(store, &released.id).await.record.fence.number;
    assert_eq!(shop.run(&released).await.unwrap(), "execute");
    assert!(entry(store, &released.id).await.record.fence.number > before, "numbers only grow");
    // A fingerprint that was keyed with a secret which is not at hand.
    let keyed = Call::new("keyed").printed(&[print(2, 1), print(1, 1)]);
    assert_eq!(shop.run(&keyed).await.unwrap(), "execute");
    assert_eq!(verdict(&keyed).await, "replay");
    assert_eq!(verdict(&keyed.printed(&[print(1, 1)])).await, "unknown");
    assert_eq!(verdict(&keyed.printed(&[print(2, 2)])).await, "mismatch");
    assert_eq!(verdict(&keyed.printed(&[])).await, "replay", "nothing to compare");
    let other = keyed.printed(&[print(2, 2)]).with(r#"{"compare": false}"#);
    assert_eq!(verdict(&other).await, "replay", "the profile does not look");
    assert_eq!(shop.effects().await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn age_is_judged_by_the_stores_clock() {
    let shop = shop().await;
    let session = shop.session().await;
    let now = shop.here.number("SELECT semel.now_ms()").await;
    let call = Call::new("old");
    let sent = |ago: i64| call.with(&format!(r#"{{"first_sent": {}, "retry_window_ms": 60000}}"#, now - ago));
    assert_eq!(sent(120_000).look_verdict(&session).await, "too-old");
    assert_eq!(sent(-600_000).look_verdict(&session).await, "first-sent-in-future");
    assert_eq!(sent(1000).look_verdict(&session).await, "execute");
    assert_eq!(shop.run(&sent(1000)).await.unwrap(), "execute");
    assert_eq!(sent(120_000).look_verdict(&session).await, "replay", "what is on record is replayed");
    session.batch_execute("BEGIN").await.unwrap();
    assert_eq!(Call::new("older").with(&sent(120_000).options).enter(&session).await.unwrap(), "too-old");
    assert_eq!(code(session.batch_execute(EFFECT).await), "25006");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_and_a_transaction_exclude_each_other() {
    let shop = shop().await;
    let session = shop.session().await;
    let about = semel_store::About { principal: "alice".to_owned(), ..Default::default() };
    let call = Call::new("sealed");
    call.begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    // Nothing is on record, so the seal wins, and the transaction finds out.
    let sealed = shop.here.store.seal(&call.id, &about, &lifetime()).await;
    assert!(matches!(sealed, Ok(Sealed::Done)), "{sealed:?}");
    assert_eq!(code(call.leave(&session, 201, b"").await), "40001");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.run(&call).await.unwrap(), "sealed");
    // What was committed cannot be sealed.
    let done = Call::new("done");
    assert_eq!(shop.run(&done).await.unwrap(), "execute");
    assert!(matches!(shop.here.store.seal(&done.id, &about, &lifetime()).await, Ok(Sealed::Known(_))));
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_binary_answers_and_lists_of_headers() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("binary").with(r#"{"max_response_bytes": 5000000}"#);
    call.begin(&session).await;
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let headers = b"\0\x01a\0\0\0\x01\xff\0\x01a\0\0\0\x02bc".as_slice();
    let hash = call.id.hash();
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&hash.as_slice(), &200, &headers, &body];
    session.query_one(crate::once_fixture::LEAVE, &values).await.unwrap();
    session.batch_execute("COMMIT").await.unwrap();
    let again = call.look(&session).await;
    assert_eq!((again.get::<_, &[u8]>("headers"), again.get::<_, &[u8]>("body")), (headers, body.as_slice()));
    let kept = entry(&shop.here.store, &call.id).await.answer.expect("the store reads it");
    let list = [("a".to_owned(), vec![0xff]), ("a".to_owned(), b"bc".to_vec())];
    assert_eq!((&kept.headers[..], kept.body.len()), (&list[..], body.len()));
    // Too large is not an error: that it took effect is kept, and said.
    let large = Call::new("large").with(r#"{"max_response_bytes": 3}"#);
    large.begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert_eq!(large.leave(&session, 201, b"four").await.unwrap().get::<_, &str>("verdict"), "not-kept");
    session.batch_execute("COMMIT").await.unwrap();
    let again = large.look(&session).await;
    assert_eq!((again.get::<_, &str>("verdict"), again.get::<_, i32>("status")), ("not-kept", 201));
    assert_eq!(entry(&shop.here.store, &large.id).await.record.state, State::Unkept);
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_acknowledged_is_committed_synchronously() {
    let shop = shop().await;
    let session = shop.session().await;
    let show = "SELECT current_setting('synchronous_commit')";
    for (prefers, expected) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")] {
        session.batch_execute(&format!("SET synchronous_commit = {prefers}")).await.unwrap();
        let call = Call::new("durable");
        call.begin(&session).await;
        call.leave(&session, 201, b"").await.unwrap();
        let found: String = session.query_one(show, &[]).await.unwrap().get(0);
        assert_eq!(found, expected, "{prefers}");
        session.batch_execute("COMMIT").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_clock_that_a_process_has_confirmed_expires_anything() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("expiring").with(r#"{"lifetime_ms": 1000}"#);
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    let first = entry(&shop.here.store, &call.id).await;
    assert_eq!(first.record.expires_at, Some(first.settled_at.unwrap().plus(Duration::from_secs(1))));
    // A server's clock that leaps ahead expires nothing.
    session.batch_execute("UPDATE semel.clock SET offset_ms = offset_ms + 3600000").await.unwrap();
    assert_eq!(call.look_verdict(&session).await, "replay");
    session.batch_execute("UPDATE semel.clock SET offset_ms = offset_ms - 3600000").await.unwrap();
    // A process that watches has counted beyond its lifetime.
    session.batch_execute("UPDATE semel.clock SET high_water_ms = semel.now_ms() + 5000").await.unwrap();
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    let second = entry(&shop.here.store, &call.id).await;
    assert!(
        second.record.fence.number > first.record.fence.number
            && second.record.created_at > first.record.created_at
    );
    assert_eq!((shop.effects().await, shop.records().await), (2, 1), "it took the old one's place");
    // The sweeper removes what leave has written.
    shop.here.pass(Duration::from_secs(60)).await;
    let swept = shop.here.store.sweep(10, Duration::ZERO).await.unwrap();
    assert_eq!((swept.removed, shop.records().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_swept_or_taken_over_meanwhile_makes_the_late_one_fail() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("swept").with(r#"{"lifetime_ms": 1000}"#);
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    shop.here.pass(Duration::from_secs(60)).await;
    session.batch_execute("UPDATE semel.clock SET high_water_ms = semel.now_ms()").await.unwrap();
    call.begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    shop.here.store.sweep(10, Duration::ZERO).await.unwrap();
    assert_eq!(code(call.leave(&session, 201, b"").await), "40001");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    // A gateway that would take it over is told to wait instead.
    let found = entry(&shop.here.store, &call.id).await;
    shop.here.pass(Duration::from_secs(60)).await;
    session.batch_execute("UPDATE semel.clock SET high_water_ms = semel.now_ms()").await.unwrap();
    call.begin(&session).await;
    let take_over =
        ClaimRequest { how: Claim::TakeOver, replaces: Some(found.record.fence), ..claim_request(&call.id) };
    assert!(matches!(shop.here.store.claim(take_over).await, Ok(ClaimOutcome::Entered)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_principal_leaves_only_that_the_key_was_used() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("erased");
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    assert_eq!(shop.here.store.forget(None, "alice", "carol").await, Ok(1));
    let found = call.look(&session).await;
    assert_eq!((found.get::<_, &str>("verdict"), found.get::<_, i32>("status")), ("not-kept", 0));
    let left =
        "SELECT count(*) FROM semel.record WHERE principal <> '' OR request_id <> '' OR body IS NOT NULL";
    assert_eq!(shop.here.number(left).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_person_go_with_the_persons_row() {
    let shop = shop().await;
    let session = shop.session().await;
    let sql = "CREATE TABLE public.person (id text, team text); INSERT INTO public.person VALUES ('alice', NULL), ('bob', NULL);
        CREATE TRIGGER forget AFTER DELETE ON public.person FOR EACH ROW EXECUTE FUNCTION semel.forget_deleted('id', 'team')";
    session.batch_execute(sql).await.unwrap();
    let call = Call::new("cascade");
    let of_bob = Call { about: call.about.replace("alice", "bob"), ..Call::new("of bob") };
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    assert_eq!(shop.run(&of_bob).await.unwrap(), "execute");
    let alices = "SELECT count(*) FROM semel.record WHERE principal = 'alice'";
    let delete = "DELETE FROM public.person WHERE id = 'alice'";
    session.batch_execute(&format!("BEGIN; {delete}; ROLLBACK")).await.unwrap();
    assert_eq!(shop.here.number(alices).await, 1, "a deletion that was rolled back erases nothing");
    session.batch_execute(delete).await.unwrap();
    assert_eq!(shop.here.number(alices).await, 0);
    assert_eq!(call.look(&session).await.get::<_, &str>("verdict"), "not-kept", "her key does not run again");
    assert_eq!(of_bob.look(&session).await.get::<_, &str>("verdict"), "replay", "his is as it was");
    assert_eq!(shop.here.number("SELECT count FROM semel.audit WHERE action = 'forget'").await, 1);
    // After a jump of the server's clock that nobody has confirmed, what has not expired for the others has not for this one.
    let late = Call { about: call.about.replace("alice", "carl"), ..Call::new("of carl") };
    assert_eq!(shop.run(&late).await.unwrap(), "execute");
    session
        .batch_execute("INSERT INTO public.person VALUES ('carl', NULL); UPDATE semel.record SET expires_at = semel.now_ms() - 1
            WHERE principal = 'carl'; UPDATE semel.clock SET high_water_ms = semel.now_ms() - 60000")
        .await
        .unwrap();
    assert_eq!(late.look(&session).await.get::<_, &str>("verdict"), "replay");
    session.batch_execute("DELETE FROM public.person WHERE id = 'carl'").await.unwrap();
    assert_eq!(late.look(&session).await.get::<_, &str>("verdict"), "not-kept");
    // A column that is not there would erase nothing, in silence.
    let typo = "DROP TRIGGER forget ON public.person;
        CREATE TRIGGER forget AFTER DELETE ON public.person FOR EACH ROW EXECUTE FUNCTION semel.forget_deleted('idd')";
    session.batch_execute(typo).await.unwrap();
    assert_eq!(code(session.batch_execute("DELETE FROM public.person").await), "SM003");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same key under another name of its endpoint.
fn renamed(call: &Call, endpoint: &str) -> Call {
    let scope = Scope::of(None, Some("alice"), Some(endpoint));
    Call { id: Id { scope, key: call.id.key.clone() }, ..call.clone() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_endpoint_knows_its_keys() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let old = Call::new("renamed");
    assert_eq!(shop.run(&old).await.unwrap(), "execute");
    let formers = |call: &Call| {
        let scope = hex(call.id.scope.as_bytes());
        format!(r#"{{"formers": [{{"scope": "{scope}", "fingerprints": ["{}"]}}]}}"#, hex(&call.prints[0]))
    };
    let new = renamed(&old, "place-order").printed(&[print(1, 9)]).with(&formers(&old));
    assert_eq!(new.look_verdict(&session).await, "replay");
    assert_eq!(shop.run(&new).await.unwrap(), "replay");
    let otherwise = new.with(&formers(&old.printed(&[print(1, 8)])));
    assert_eq!(shop.run(&otherwise).await.unwrap(), "mismatch", "by the former name's fingerprint");
    // While one runs under the old name, the new one waits; and the other way.
    let fresh = Call::new("renamed-fresh");
    let new = renamed(&fresh, "place-order").with(&formers(&fresh));
    fresh.begin(&session).await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(new.enter(&other).await.unwrap(), "in-flight");
    other.batch_execute("ROLLBACK").await.unwrap();
    session.batch_execute("ROLLBACK").await.unwrap();
    new.begin(&session).await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(fresh.enter(&other).await.unwrap(), "in-flight");
    other.batch_execute("ROLLBACK").await.unwrap();
    // A gateway of an earlier release takes no lock: its claim under the old name is found by leave.
    let claim = "INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, principal, state, guarantee, created_at,
            first_lease_until, late_until, request_headers, request_id)
        VALUES (nextval('semel.fence'), 1, $1, $2, $3, '', '', 1, 2, 0, semel.now_ms() + 30000, 0, '', '')";
    let (hash, scope) = (fresh.id.hash(), fresh.id.scope);
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&hash.as_slice(), &scope.as_bytes().as_slice(), &fresh.id.key.as_str()];
    other.execute(claim, &values).await.unwrap();
    assert_eq!(code(new.leave(&session, 201, b"").await), "40001");
}

/// What was committed under the former name since a transaction began is invisible to it where its isolation level keeps it to
/// a snapshot, and no unique index stands between the two names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn former_names_are_refused_where_a_snapshot_would_hide_them() {
    let shop = shop().await;
    let session = shop.session().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let old = Call::new(&format!("snapshot of {level}"));
        let scope = hex(old.id.scope.as_bytes());
        let new = renamed(&old, "place-order").with(&format!(r#"{{"formers": [{{"scope": "{scope}"}}]}}"#));
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.effect");
        session.batch_execute(&begin).await.unwrap();
        assert_eq!(shop.run(&old).await.unwrap(), "execute");
        assert_eq!(code(new.enter(&session).await), "SM003", "{level}");
        session.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(shop.run(&new).await.unwrap(), "replay", "{level}: in READ COMMITTED it is seen");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_credential_is_recognised() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let mark = format!(r#"{{"rotation": "{}"}}"#, hex(&[5; 16]));
    let before = Call::new("rotated").with(&mark);
    let scope = Scope::of(None, Some("alice, another token"), Some("create-order"));
    let after = Call { id: Id { scope, key: before.id.key.clone() }, ..before.clone() };
    // Both at the same time: one waits.
    before.begin(&session).await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(after.enter(&other).await.unwrap(), "in-flight");
    other.batch_execute("ROLLBACK").await.unwrap();
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.run(&before).await.unwrap(), "execute");
    assert_eq!(shop.run(&before).await.unwrap(), "replay");
    assert_eq!(shop.run(&after).await.unwrap(), "credential-changed");
    assert_eq!(after.look_verdict(&session).await, "credential-changed");
    // An expired record gives its place up.
    session.batch_execute("UPDATE semel.clock SET high_water_ms = semel.now_ms() + 91000000").await.unwrap();
    assert_eq!(shop.run(&after).await.unwrap(), "execute");
    assert_eq!(shop.effects().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_lost_effect_and_record_together() {
    let shop = shop().await;
    let now = shop.here.number("SELECT semel.now_ms()").await;
    let at = semel_contract::time::Timestamp::from_millis(now - 1000);
    let restored = semel_contract::restore::Undated::Unknown;
    shop.here.store.restored(at, restored, "carol", "the disk is gone").await.expect("it is noted");
    let call = Call::new("restored").with(&format!(r#"{{"first_sent": {}}}"#, now - 500));
    assert_eq!(shop.run(&call).await.unwrap(), "execute", "whatever was lost was lost with its effect");
    assert_eq!(shop.run(&call).await.unwrap(), "replay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_is_counted_once_for_each_key() {
    let shop = shop().await;
    let session = shop.session().await;
    let sql = "SELECT * FROM semel.admit($1::bytea, $2::text::jsonb, $3::text::jsonb)";
    let limits = r#"{"request": {"count": 5, "window_ms": 3600000},
        "admission": {"count": 2, "window_ms": 3600000, "attempts_per_id": 2}, "stale": true}"#;
    let admit = async |id: &Id| -> (String, bool) {
        let hash = id.hash();
        let row = session.query_one(sql, &[&hash.as_slice(), &ABOUT, &limits]).await.unwrap();
        (row.get("verdict"), row.get::<_, Option<i64>>("retry_after_ms").is_some_and(|ms| ms > 0))
    };
    let (first, second, third) = (id("a"), id("b"), id("c"));
    assert_eq!(admit(&first).await.0, "admitted");
    assert_eq!(admit(&first).await.0, "admitted", "its unit is paid");
    assert_eq!(admit(&second).await.0, "admitted");
    assert_eq!(admit(&third).await, ("admission-limited".to_owned(), true));
    assert_eq!(admit(&first).await, ("admission-limited".to_owned(), true), "too often");
    assert_eq!(admit(&second).await, ("request-limited".to_owned(), true));
    assert_eq!(shop.here.number("SELECT count FROM semel.stale WHERE principal = 'alice'").await, 3);
    // The store's own limiter spends the same budget.
    let rate = semel_contract::profile::Rate { count: 5, window: Duration::from_secs(3600) };
    let mut subject = Vec::new();
    for part in ["request", "5/3600000", "", "alice"] {
        subject.extend_from_slice(&(part.len() as u64).to_be_bytes());
        subject.extend_from_slice(part.as_bytes());
    }
    let now = semel_contract::time::Timestamp::from_millis(shop.here.number("SELECT semel.now_ms()").await);
    use semel_store::limits::{Limiter, Verdict};
    let verdict = shop.here.store.limiter().request(&subject, rate, now).await.unwrap();
    assert!(matches!(verdict, Verdict::Denied { .. }), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_may_do_what_is_theirs() {
    let shop = shop().await;
    let library = shop.session().await;
    library
        .batch_execute("GRANT INSERT ON public.effect TO semel_library; SET ROLE semel_library")
        .await
        .unwrap();
    let call = Call::new("role");
    call.begin(&library).await;
    library.batch_execute(EFFECT).await.unwrap();
    call.leave(&library, 201, b"made").await.unwrap();
    library.batch_execute("COMMIT").await.unwrap();
    assert_eq!(call.look_verdict(&library).await, "replay");
    for forbidden in [
        "SELECT * FROM semel.record",
        "DELETE FROM semel.record",
        "UPDATE semel.clock SET offset_ms = 0",
        "INSERT INTO semel.entered VALUES ('')",
        "SELECT semel.settle('1-0000000000000000', 201, '{}', '')",
        "SELECT semel.judge('', '', '', NULL, '{}', true)",
        "SELECT semel.confirm_clock()",
    ] {
        assert_eq!(code(library.batch_execute(forbidden).await), "42501", "{forbidden}");
    }
    let handler = shop.session().await;
    handler.batch_execute("SET ROLE semel_handler").await.unwrap();
    for forbidden in [
        "SELECT * FROM semel.look('', '', '', NULL, '{}')",
        "SELECT * FROM semel.enter('', '', '', NULL, '{}', '{}')",
        "SELECT * FROM semel.leave('', 200, '', '')",
        "SELECT * FROM semel.admit('', '{}', '{}')",
    ] {
        assert_eq!(code(handler.batch_execute(forbidden).await), "42501", "{forbidden}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_sessions_makes_one_effect_and_no_late_failure() {
    let shop = Arc::new(shop().await);
    let call = Call::new("storm");
    let sessions: Vec<_> = (0..24)
        .map(|_| {
            let (shop, call) = (Arc::clone(&shop), call.clone());
            tokio::spawn(async move {
                let mut told = Vec::new();
                until("it is answered", || async {
                    let verdict = shop.run(&call).await.expect("with the lock, leave never fails");
                    verdict != "in-flight"
                })
                .await;
                told.push(shop.run(&call).await.expect("a replay"));
                told
            })
        })
        .collect();
    for session in sessions {
        assert!(session.await.expect("no panic").iter().all(|verdict| verdict == "replay"));
    }
    assert_eq!((shop.effects().await, shop.records().await), (1, 1));
    let kept = entry(&shop.here.store, &call.id).await.answer.map(|kept| kept.body);
    assert_eq!(kept, Some(answer("made").body));
}
