//! A store with protected answers passes the whole suite of stores, shows nothing of an answer to the store beneath,
//! and refuses what was altered, moved, or encrypted under a key that is gone.

#![cfg(feature = "at-rest")]

use std::future::{Future, ready};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee, State};
use semel_contract::scope::Scope;
use semel_store::at_rest::{
    AtRest, BLOB_HEADER, KEY_FILE_BYTES_MAX, KeyFileError, KeyRing, MARKER_HEADER, Protection,
    UNPACKED_BYTES_MAX,
};
use semel_store::conformance::{Fixture, LATE, LEASE, TestClock};
use semel_store::memory::MemoryStore;
use semel_store::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, Resolution,
    Resolved, Sealed, Settlement, StoreError,
};

/// What must never be seen beneath. Long and repeated, so that compression has something to do.
const PLANTED: &str = "planted-secret-4711";

fn key_line(id: &str, byte: u8) -> String {
    format!("{id} {}\n", STANDARD.encode([byte; 32]))
}

fn ring(lines: &[(&str, u8)]) -> KeyRing {
    let text: String = lines.iter().map(|(id, byte)| key_line(id, *byte)).collect();
    KeyRing::parse(&text).expect("a key file")
}

struct Protected {
    clock: Arc<TestClock>,
    inner: Arc<MemoryStore>,
    store: Arc<AtRest<MemoryStore>>,
}

impl Protected {
    fn by(protection: Protection) -> Protected {
        let clock = Arc::new(TestClock::default());
        let inner = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        let store = Arc::new(AtRest::new(Arc::clone(&inner), protection));
        Protected { clock, inner, store }
    }

    /// The same records under another protection.
    fn reopened(&self, protection: Protection) -> AtRest<MemoryStore> {
        AtRest::new(Arc::clone(&self.inner), protection)
    }
}

impl semel_store::conformance::AdminFixture for Protected {
    fn admin(&self) -> Arc<dyn semel_store::AdminStore> {
        Arc::clone(&self.store) as _
    }
}

impl Fixture for Protected {
    fn store(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.store) as _
    }

    fn advance<'a>(&'a self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.clock.advance(by);
        Box::pin(ready(()))
    }

    fn set_wall_off<'a>(&'a self, millis: i64) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        self.clock.set_wall_off(millis);
        Box::pin(ready(true))
    }
}

mod compressed_and_encrypted {
    use super::*;
    semel_store::conformance_tests!(ready(Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])))));
    semel_store::admin_conformance_tests!(ready(Protected::by(Protection::CompressAndEncrypt(ring(&[(
        "a", 1
    )])))));
}

mod encrypted {
    use super::*;
    semel_store::conformance_tests!(ready(Protected::by(Protection::Encrypt(ring(&[("a", 1)])))));
}

mod compressed {
    use super::*;
    semel_store::conformance_tests!(ready(Protected::by(Protection::Compress { reads: None })));
}

fn id() -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("key-{}", NEXT.fetch_add(1, Ordering::SeqCst));
    let key = Key::parse(&Format::Printable255, &unique).expect("a printable key");
    Id { scope: Scope::of(None, Some("alice"), Some("create-order")), key }
}

fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

fn answer(text: &str) -> Answer {
    Answer {
        status: 201,
        headers: vec![("location".to_owned(), format!("/orders/{text}").into_bytes())].into(),
        body: Bytes::from(text.repeat(100)),
        outcome_unknown: false,
    }
}

fn bodiless() -> Answer {
    Answer { body: Bytes::new(), ..answer("same") }
}

fn settled(text: &str) -> Settlement {
    Settlement::Settle(answer(text))
}

/// A request with a nonce that no other one has.
fn claim_request(id: &Id) -> ClaimRequest {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: NONCE.fetch_add(1, Ordering::SeqCst),
        lease: LEASE,
        late: LATE,
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: Arc::default(),
    }
}

async fn won_by(store: &dyn ClaimStore, request: ClaimRequest) -> Fence {
    match store.claim(request).await.expect("the store answers") {
        ClaimOutcome::Won { fence, .. } => fence,
        other => panic!("expected to win, found {other:?}"),
    }
}

async fn won(store: &dyn ClaimStore, id: &Id) -> Fence {
    won_by(store, claim_request(id)).await
}

/// Writes a record through one store, and says under which fence.
async fn written(store: &dyn ClaimStore, id: &Id, settlement: Settlement) -> Fence {
    let fence = won(store, id).await;
    let written = store.settle(id, fence, settlement, &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    fence
}

async fn entry(store: &dyn ClaimStore, id: &Id) -> Entry {
    store.look_up(id).await.expect("the store answers").0.expect("there is a record")
}

async fn kept(store: &dyn ClaimStore, id: &Id) -> Answer {
    entry(store, id).await.answer.expect("there is an answer")
}

/// Why a record cannot be read; it says nothing of the answer, and is the same by every way of reading.
async fn refusal(store: &dyn ClaimStore, id: &Id) -> String {
    let why = match store.look_up(id).await {
        Err(StoreError::Unavailable(why)) => why,
        other => panic!("expected a refusal, found {other:?}"),
    };
    assert!(!why.contains(PLANTED), "{why}");
    let refused = Err(StoreError::Unavailable(why.clone()));
    assert_eq!(store.seal(id, &About::default(), &lifetime()).await.map(|_| ()), refused);
    assert_eq!(store.list(&Filter { limit: 100, ..Filter::default() }).await.map(|_| ()), refused);
    assert_eq!(store.claim(claim_request(id)).await.map(|_| ()), refused);
    why
}

fn shows(answer: &Answer, text: &str) -> bool {
    format!("{:?}", answer.headers).contains(text)
        || answer.headers.iter().any(|(_, value)| contains(value, text.as_bytes()))
        || contains(&answer.body, text.as_bytes())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn the_store_beneath_sees_nothing_of_an_encrypted_answer() {
    for protection in
        [Protection::Encrypt(ring(&[("a", 1)])), Protection::CompressAndEncrypt(ring(&[("a", 1)]))]
    {
        let protected = Protected::by(protection);
        for settlement in [settled(PLANTED), Settlement::Unkept(answer(PLANTED))] {
            let id = id();
            written(&*protected.store, &id, settlement).await;
            let beneath = kept(&*protected.inner, &id).await;
            assert!(!shows(&beneath, PLANTED), "{beneath:?}");
            assert!(!shows(&beneath, "location"), "{beneath:?}");
            assert_eq!(beneath.status, 201);
            assert_eq!(beneath.headers[0].0, MARKER_HEADER);
            assert!(shows(&kept(&*protected.store, &id).await, PLANTED));
        }
    }
}

#[tokio::test]
async fn a_resolved_answer_is_sealed_too_and_opens_under_its_new_number() {
    let protected = Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
    let id = id();
    let fence = written(&*protected.store, &id, Settlement::Unknown).await;
    let resolution = Resolution::Applied(Some(answer(PLANTED)));
    let resolved = protected.store.resolve(&id, fence, resolution, &lifetime(), "carol", "looked").await;
    assert_eq!(resolved, Ok(Resolved::Done));
    assert!(!shows(&kept(&*protected.inner, &id).await, PLANTED));
    let found = entry(&*protected.store, &id).await;
    assert_eq!((found.record.state, found.answer), (State::Settled, Some(answer(PLANTED))));
    assert_ne!(found.record.fence.number, fence.number);
}

#[tokio::test]
async fn an_opened_answer_is_found_by_every_way_of_reading() {
    let protected = Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
    let id = id();
    written(&*protected.store, &id, settled(PLANTED)).await;
    let expected = Some(answer(PLANTED));
    assert_eq!(entry(&*protected.store, &id).await.answer, expected);
    match protected.store.seal(&id, &About::default(), &lifetime()).await {
        Ok(Sealed::Known(entry)) => assert_eq!(entry.answer, expected),
        other => panic!("expected the record, found {other:?}"),
    }
    match protected.store.claim(claim_request(&id)).await {
        Ok(ClaimOutcome::Known { entry, .. }) => assert_eq!(entry.answer, expected),
        other => panic!("expected the record, found {other:?}"),
    }
    let listed =
        protected.store.list(&Filter { limit: 10, ..Filter::default() }).await.expect("the store answers");
    assert_eq!(listed.into_iter().map(|entry| entry.answer).collect::<Vec<_>>(), [expected]);
}

/// Puts an answer beneath, as somebody with access to the database could.
async fn planted(protected: &Protected, id: &Id, fence: Fence, answer: Answer) {
    let written = protected.inner.settle(id, fence, Settlement::Settle(answer), &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
}

#[tokio::test]
async fn answers_swapped_between_two_records_are_refused() {
    let protected = Protected::by(Protection::Encrypt(ring(&[("a", 1)])));
    let (source, target) = (id(), id());
    written(&*protected.store, &source, settled(PLANTED)).await;
    let fence = won(&*protected.store, &target).await;
    planted(&protected, &target, fence, kept(&*protected.inner, &source).await).await;
    let why = refusal(&*protected.store, &target).await;
    assert!(why.contains("tampered with") && why.contains(&fence.to_string()), "{why}");
    assert_eq!(kept(&*protected.store, &source).await, answer(PLANTED), "the other one is as it was");
}

#[tokio::test]
async fn an_answer_of_an_earlier_attempt_is_refused() {
    let protected = Protected::by(Protection::Encrypt(ring(&[("a", 1)])));
    let id = id();
    written(&*protected.store, &id, settled(PLANTED)).await;
    let old = kept(&*protected.inner, &id).await;
    protected.clock.advance(lifetime().record() + Duration::from_secs(1));
    protected.store.sweep(10, Duration::ZERO).await.expect("the store answers");
    let fence = won(&*protected.store, &id).await;
    planted(&protected, &id, fence, old).await;
    assert!(refusal(&*protected.store, &id).await.contains("tampered with"));
}

#[tokio::test]
async fn a_changed_byte_anywhere_is_refused() {
    let protected = Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
    let source = id();
    let fence = written(&*protected.store, &source, settled(PLANTED)).await;
    let sealed = kept(&*protected.inner, &source).await;
    let by_byte = |at: usize| {
        let mut body = sealed.body.to_vec();
        body[at] ^= 1;
        Answer { body: Bytes::from(body), ..sealed.clone() }
    };
    let cut = |length: usize| Answer { body: sealed.body.slice(..length), ..sealed.clone() };
    let mut changed: Vec<Answer> = (0..sealed.body.len()).map(by_byte).collect();
    changed.extend([0, 10, 24, sealed.body.len() - 1].map(cut));
    changed.push(Answer { status: 200, ..sealed.clone() });
    changed.push(Answer { outcome_unknown: true, ..sealed.clone() });
    for changed in changed {
        // The same record, written anew by a store that was altered.
        let altered = Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
        let fence =
            won_by(&*altered.inner, ClaimRequest { nonce: fence.nonce, ..claim_request(&source) }).await;
        planted(&altered, &source, fence, changed).await;
        assert!(refusal(&*altered.store, &source).await.contains("tampered with"));
    }
}

#[tokio::test]
async fn an_altered_marker_is_refused() {
    let protected = Protected::by(Protection::Encrypt(ring(&[("a", 1), ("b", 2)])));
    let source = id();
    let fence = written(&*protected.store, &source, settled(PLANTED)).await;
    let sealed = kept(&*protected.inner, &source).await;
    for (marker, expected) in [
        ("1 zstd key:a", "tampered with"),
        ("1 whole key:b", "tampered with"),
        ("1 whole key:c", "\"c\""),
        ("1 whole open", "damaged"),
        ("2 whole key:a", "form"),
        ("nonsense", "form"),
    ] {
        let altered = Protected::by(Protection::Encrypt(ring(&[("a", 1), ("b", 2)])));
        let fence =
            won_by(&*altered.inner, ClaimRequest { nonce: fence.nonce, ..claim_request(&source) }).await;
        let headers = vec![(MARKER_HEADER.to_owned(), marker.as_bytes().to_vec())];
        planted(&altered, &source, fence, Answer { headers: headers.into(), ..sealed.clone() }).await;
        let why = refusal(&*altered.store, &source).await;
        assert!(why.contains(expected), "{marker}: {why}");
    }
}

#[tokio::test]
async fn a_rotated_key_still_reads_and_a_removed_one_is_named() {
    let protected = Protected::by(Protection::Encrypt(ring(&[("old", 1)])));
    let (before, after) = (id(), id());
    written(&*protected.store, &before, settled("before")).await;
    let rotated = protected.reopened(Protection::Encrypt(ring(&[("new", 2), ("old", 1)])));
    assert_eq!(kept(&rotated, &before).await, answer("before"));
    written(&rotated, &after, settled("after")).await;
    assert_eq!(kept(&rotated, &after).await, answer("after"));
    let marker = |answer: Answer| String::from_utf8(answer.headers[0].1.clone()).expect("a marker is text");
    assert_eq!(marker(kept(&*protected.inner, &before).await), "1 whole key:old");
    assert_eq!(marker(kept(&*protected.inner, &after).await), "1 whole key:new");
    let removed = protected.reopened(Protection::Encrypt(ring(&[("new", 2)])));
    assert_eq!(kept(&removed, &after).await, answer("after"));
    let why = refusal(&removed, &before).await;
    assert!(why.contains("\"old\"") && !why.contains("tampered"), "{why}");
    let replaced = protected.reopened(Protection::Encrypt(ring(&[("new", 2), ("old", 3)])));
    assert!(refusal(&replaced, &before).await.contains("tampered with"), "another key under the old id");
}

#[tokio::test]
async fn what_was_written_before_is_read_after_a_change_of_protection() {
    let protected = Protected::by(Protection::Compress { reads: None });
    let (plain, compressed, encrypted) = (id(), id(), id());
    written(&*protected.inner, &plain, settled("plain")).await;
    written(&*protected.store, &compressed, settled("compressed")).await;
    let both = protected.reopened(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
    written(&both, &encrypted, settled("encrypted")).await;
    let back = protected.reopened(Protection::Compress { reads: Some(ring(&[("a", 1)])) });
    for store in [&both, &back] {
        for (id, text) in [(&plain, "plain"), (&compressed, "compressed"), (&encrypted, "encrypted")] {
            assert_eq!(kept(store, id).await, answer(text), "{text}");
        }
    }
    assert!(refusal(&*protected.store, &encrypted).await.contains("\"a\""));
}

#[tokio::test]
async fn settling_again_is_done_only_with_the_same_answer_and_fence() {
    let protected = Protected::by(Protection::CompressAndEncrypt(ring(&[("old", 1)])));
    let rotated = protected.reopened(Protection::Encrypt(ring(&[("new", 2), ("old", 1)])));
    for (same, other) in [
        (settled("same"), settled("other")),
        (Settlement::Unkept(answer("same")), Settlement::Unkept(answer("other"))),
        (Settlement::Unkept(answer("same")), settled("same")),
        (Settlement::Settle(bodiless()), Settlement::Unkept(bodiless())),
    ] {
        let id = id();
        let fence = written(&*protected.store, &id, same.clone()).await;
        let stale = Fence { number: fence.number + 1, ..fence };
        for store in [&*protected.store, &rotated] {
            let settle = async |fence, settlement: &Settlement| {
                store.settle(&id, fence, settlement.clone(), &lifetime()).await.expect("the store answers")
            };
            assert_eq!(settle(fence, &same).await, FencedWrite::Done);
            assert_eq!(settle(fence, &other).await, FencedWrite::Superseded);
            assert_eq!(settle(stale, &same).await, FencedWrite::Superseded);
            assert_eq!(settle(fence, &Settlement::Release).await, FencedWrite::Superseded);
        }
    }
}

#[tokio::test]
async fn compression_saves_room_where_it_can() {
    let protected = Protected::by(Protection::Compress { reads: None });
    let (large, small) = (id(), id());
    written(&*protected.store, &large, settled(PLANTED)).await;
    let beneath = kept(&*protected.inner, &large).await;
    assert!(beneath.body.len() < answer(PLANTED).body.len() / 10, "{} bytes", beneath.body.len());
    assert_eq!(beneath.headers[0].1, b"1 zstd open");
    written(&*protected.store, &small, settled("x")).await;
    assert_eq!(kept(&*protected.inner, &small).await, answer("x"), "a small one is kept as it is");
}

#[tokio::test]
async fn an_answer_that_looks_sealed_is_kept_as_the_handler_gave_it() {
    let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    let headers = vec![header(MARKER_HEADER, "1 zstd key:z"), header(BLOB_HEADER, "AAAA")];
    for protection in [Protection::Compress { reads: None }, Protection::Encrypt(ring(&[("a", 1)]))] {
        let protected = Protected::by(protection);
        for body in [Bytes::new(), Bytes::from_static(b"small")] {
            let id = id();
            let given = Answer { headers: headers.clone().into(), body, ..answer("") };
            written(&*protected.store, &id, Settlement::Settle(given.clone())).await;
            assert_eq!(kept(&*protected.store, &id).await, given);
        }
    }
}

#[tokio::test]
async fn a_compression_bomb_is_refused() {
    let protected = Protected::by(Protection::CompressAndEncrypt(ring(&[("a", 1)])));
    let bomb = zstd::bulk::compress(&vec![0; UNPACKED_BYTES_MAX + 1], 3).expect("zeros compress");
    for (named, expected) in [(UNPACKED_BYTES_MAX + 1, "16 MiB"), (1000, "length")] {
        let id = id();
        let fence = won(&*protected.store, &id).await;
        let body = [(named as u32).to_be_bytes().as_slice(), &bomb].concat();
        let headers = vec![(MARKER_HEADER.to_owned(), b"1 zstd open".to_vec())];
        planted(
            &protected,
            &id,
            fence,
            Answer { headers: headers.into(), body: Bytes::from(body), ..answer("") },
        )
        .await;
        let why = match protected.store.look_up(&id).await {
            Err(StoreError::Unavailable(why)) => why,
            other => panic!("expected a refusal, found {other:?}"),
        };
        assert!(why.contains(expected), "{why}");
    }
}

#[cfg(unix)]
fn key_file(folder: &Path, mode: u32, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(format!("keys-{mode:o}-{}", text.len()));
    std::fs::write(&path, text).expect("a file can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode can be set");
    path
}

#[cfg(unix)]
#[test]
fn a_key_file_that_others_can_reach_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = key_line("a", 1);
    for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o601, 0o610, 0o666] {
        let error = KeyRing::load(&key_file(folder.path(), mode, &text)).expect_err("others can reach it");
        assert_eq!(error, KeyFileError::OpenToOthers { mode });
        assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
    }
    for mode in [0o600, 0o400] {
        let ring = KeyRing::load(&key_file(folder.path(), mode, &text)).expect("only its owner can reach it");
        assert_eq!(ring.writing_id(), "a");
    }
}

#[cfg(unix)]
#[test]
fn a_key_file_that_is_missing_too_long_or_no_text_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let load = |path: &Path| KeyRing::load(path).expect_err("it is no key file");
    let missing = folder.path().join("missing");
    assert!(load(&missing).to_string().contains("missing"));
    let long = "#".repeat(KEY_FILE_BYTES_MAX as usize + 1);
    assert_eq!(load(&key_file(folder.path(), 0o600, &long)), KeyFileError::TooLarge);
    let binary = key_file(folder.path(), 0o600, "");
    std::fs::write(&binary, [0xff, 0xfe]).expect("a file can be written");
    assert!(matches!(load(&binary), KeyFileError::Unreadable(_)));
    assert!(matches!(load(folder.path()), KeyFileError::OpenToOthers { .. } | KeyFileError::Unreadable(_)));
}
