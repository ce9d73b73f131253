//! Encrypted answers on the embedded store: what was said is found neither in the database file nor in its log.
#![cfg(all(feature = "at-rest", feature = "sqlite"))]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_contract::scope::Scope;
use semel_store::at_rest::{AtRest, KeyRing, Protection};
use semel_store::sqlite::SqliteStore;
use semel_store::{Answer, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement};

const MARKER: &[u8] = b"account 4711 owes 42";

fn ring() -> KeyRing {
    KeyRing::parse("k1 BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n").expect("a key file")
}

async fn settle(store: &dyn ClaimStore, id: &Id) -> Answer {
    let request = ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: 7,
        lease: std::time::Duration::from_secs(30),
        late: std::time::Duration::from_secs(60),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: Arc::default(),
    };
    let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(request).await else { panic!("the key is new") };
    let answer = Answer {
        status: 200,
        headers: vec![("x-note".to_owned(), MARKER.to_vec())].into(),
        body: Bytes::from(MARKER.repeat(50)),
        outcome_unknown: false,
    };
    let written =
        store.settle(id, fence, Settlement::Settle(answer.clone()), &presets::ietf().lifetime).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    answer
}

/// How often the marker stands in the files of a folder.
fn markers(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|file| std::fs::read(file.expect("a file").path()).expect("its bytes"));
    files.map(|bytes| bytes.windows(MARKER.len()).filter(|part| *part == MARKER).count()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_is_found_neither_in_the_file_nor_in_its_log() {
    let id = Id {
        scope: Scope::of(None, Some("alice"), None),
        key: Key::parse(&Format::Token255, "k").expect("a key"),
    };
    for (protected, found) in [(false, true), (true, false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || Arc::new(SqliteStore::open(folder.path().join("semel.db")).expect("the store opens"));
        let sqlite = open();
        let store: Arc<dyn ClaimStore> = match protected {
            true => Arc::new(AtRest::new(Arc::clone(&sqlite), Protection::Encrypt(ring()))),
            false => Arc::clone(&sqlite) as _,
        };
        let answer = settle(&*store, &id).await;
        assert_eq!(markers(folder.path()) > 0, found, "while it is open, in the file or its log");
        drop((store, sqlite));
        assert_eq!(markers(folder.path()) > 0, found, "and once it is closed");
        if protected {
            let reopened = AtRest::new(open(), Protection::Encrypt(ring()));
            let (entry, _) = reopened.look_up(&id).await.expect("the store answers");
            assert_eq!(entry.and_then(|entry| entry.answer), Some(answer));
        }
    }
}
