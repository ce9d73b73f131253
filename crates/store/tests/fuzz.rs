//! Rows that were damaged: a store refuses them or shows what they say, never somebody else's record and never a panic.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_contract::scope::Scope;
use semel_contract::time::Timestamp;
use semel_fuzz::cells::{Cells, Damage};
use semel_fuzz::{Target, Verdict};
use semel_store::conformance::TestClock;
use semel_store::sqlite::SqliteStore;
use semel_store::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Filter, Id, Settlement, StoreError,
};

/// A store with a record in every state.
struct World {
    store: SqliteStore,
    ids: Vec<Id>,
    runtime: tokio::runtime::Runtime,
}

fn id(key: &str) -> Id {
    let scope = Scope::of(Some("shop"), Some("alice"), Some("create-order"));
    Id { scope, key: Key::parse(&Format::Printable255, key).expect("a printable key") }
}

fn claim_request(id: &Id, nonce: u64) -> ClaimRequest {
    let about = About {
        endpoint: "create-order".to_owned(),
        tenant: Some("shop".to_owned()),
        principal: "alice".to_owned(),
        client_generated_at: Some(Timestamp::from_millis(1)),
        headers: vec![("x-device".to_owned(), "7".to_owned())],
        request_id: "r".to_owned(),
    };
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce,
        lease: Duration::from_secs(300),
        late: Duration::from_secs(300),
        guarantee: Guarantee::Fenced,
        fingerprint: Some(Fingerprint { version: Version::from_byte(1).expect("version 1"), bytes: [3; 32] }),
        payload_hash: Some([4; 32]),
        rotation: None,
        terms: None,
        about: about.into(),
    }
}

impl World {
    fn new(path: &std::path::Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let store = SqliteStore::open_with_clock(path, Arc::new(TestClock::default())).expect("a new file");
        let answer = |body: &'static str| Answer {
            status: 201,
            headers: vec![("location".to_owned(), b"/orders/1".to_vec()), ("x".to_owned(), b"\xff".to_vec())]
                .into(),
            body: Bytes::from_static(body.as_bytes()),
            outcome_unknown: false,
        };
        let settlements = [
            ("claimed", None),
            ("settled", Some(Settlement::Settle(answer("kept")))),
            ("unkept", Some(Settlement::Unkept(answer("")))),
            ("unknown", Some(Settlement::Unknown)),
            ("released", Some(Settlement::Release)),
        ];
        let mut lifetime = presets::ietf().lifetime;
        lifetime.released = Some(Duration::from_secs(3600));
        let mut ids = Vec::new();
        for (nonce, (name, settlement)) in (1..).zip(settlements) {
            let id = id(name);
            let claimed =
                runtime.block_on(store.claim(claim_request(&id, nonce))).expect("the store answers");
            let ClaimOutcome::Won { fence, .. } = claimed else { panic!("it wins") };
            if let Some(settlement) = settlement {
                let written = runtime.block_on(store.settle(&id, fence, settlement, &lifetime));
                assert_eq!(written, Ok(FencedWrite::Done));
            }
            ids.push(id);
        }
        let sealed = id("sealed");
        runtime.block_on(store.seal(&sealed, &About::default(), &lifetime)).expect("it seals");
        ids.push(sealed);
        Self { store, ids, runtime }
    }

    /// What the store says of every key. An error is what it may say; another's record is not.
    fn look(&self) -> Result<Vec<Result<String, StoreError>>, String> {
        let mut said = Vec::new();
        for id in &self.ids {
            let found = self.runtime.block_on(self.store.look_up(id));
            if let Ok((Some(entry), _)) = &found
                && entry.id != *id
            {
                return Err(format!("asked for {id:?}, it shows {:?}", entry.id));
            }
            said.push(found.map(|(entry, _)| format!("{entry:?}")));
        }
        Ok(said)
    }
}

#[test]
fn fuzz_row() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("semel.db");
    let world = World::new(&path);
    let mut cells = Cells::of(&path, |name| name.starts_with("semel_")).expect("the file can be read");
    let before = world.look().expect("the store shows what it was told");
    assert!(before.iter().all(Result::is_ok), "{before:?}");
    let mut target = Target::new("row").bytes_max(200).words(&[
        "claimed",
        "settled",
        "unkept",
        "unknown",
        "released",
        "sealed",
        "fenced",
        "atomic",
        "\0\0\0\x01a\0\0\0\x01b",
        "\0\0\0\0",
        "\u{7f}\u{ff}",
        "location",
        "\x01",
        "\x02",
    ]);
    for table in 0..4 {
        for column in 0..27 {
            target = target.seed([table, 0, column, column % 6, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
    }
    target.run(|input| {
        let damage = cells.damage(input);
        let verdict = judge(&world, &before, &damage);
        cells.mend();
        if world.look()? != before {
            return Err("a mended file is not read as before".to_owned());
        }
        verdict
    });
}

fn judge(world: &World, before: &[Result<String, StoreError>], damage: &Damage) -> Verdict {
    let after = world.look()?;
    let filter = Filter { limit: 100, ..Filter::default() };
    let listed = world.runtime.block_on(world.store.list(&filter));
    let Damage::Done { table, column, kind, is_same } = damage else {
        return if after == before {
            Ok("refused by the schema".into())
        } else {
            Err("it changed".to_owned())
        };
    };
    if *is_same && after != before {
        return Err("the same cell is read otherwise".to_owned());
    }
    // One cell belongs to one record: the others are as they were.
    let changed = after.iter().zip(before).filter(|(after, before)| after != before).count();
    if changed > 1 {
        return Err(format!("a cell of {table}.{column} changed {changed} records"));
    }
    let errors = after.iter().filter(|said| said.is_err()).count();
    Ok(format!("{table}.{column} {kind}: {changed} changed, {errors} refused, list {}", listed.is_ok())
        .into())
}
