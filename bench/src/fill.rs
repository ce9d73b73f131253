//! Puts settled records into a store by the store's own interface, many at a time, so that its commits are large. What
//! the records look like is what a gateway writes: whoever changes the store's tables need not change this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_contract::decide::Claim;
use semel_contract::fingerprint::{Fingerprint, Version};
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_contract::scope::Scope;
use semel_store::ClaimStore;
use semel_store::claims::{About, Answer, ClaimOutcome, ClaimRequest, FencedWrite, Id, Settlement};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::sqlite::SqliteStore;

use crate::load::{Ids, key};
use crate::upstream::{answer, runtime};

const LEASE: Duration = Duration::from_secs(60);
const ENDPOINT: &str = "POST /orders";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// sqlite:PATH or postgres://…
    #[arg(long)]
    store: String,
    /// How many records.
    #[arg(long)]
    records: u64,
    /// How many are under way at a time.
    #[arg(long, default_value_t = 2048)]
    parallel: u64,
    /// What keys follow from.
    #[arg(long, default_value_t = 424_242)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    runtime()?.block_on(async {
        let store: Arc<dyn ClaimStore> = match args.store.strip_prefix("sqlite:") {
            Some(path) => Arc::new(SqliteStore::open(path).map_err(|error| error.to_string())?),
            None => {
                let connected = PostgresStore::connect(&args.store, Options::default()).await;
                Arc::new(connected.map_err(|error| error.to_string())?)
            }
        };
        fill(&store, args).await
    })
}

async fn fill(store: &Arc<dyn ClaimStore>, args: &Args) -> Result<(), String> {
    let (next, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..args.parallel {
        let (store, next, args) = (Arc::clone(store), Arc::clone(&next), args.clone());
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= args.records {
                    return Ok(());
                }
                one(store.as_ref(), args.seed, number).await?;
                if number > 0 && number.is_multiple_of(100_000) {
                    eprintln!("filled {number} in {:.0} s", started.elapsed().as_secs_f64());
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| error.to_string()).and_then(|result: Result<(), String>| result)?;
    }
    println!("{}", args.records as f64 / started.elapsed().as_secs_f64().max(1e-9));
    Ok(())
}

async fn one(store: &dyn ClaimStore, seed: u64, number: u64) -> Result<(), String> {
    let text = key(Ids::Random, seed, number);
    let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
    let key = Key::parse(&Format::Printable255, text).map_err(|_| "a key that is none".to_owned())?;
    let id = Id { scope: Scope::of(None, Some("bench"), Some(ENDPOINT)), key };
    let request = ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed,
        lease: LEASE,
        late: LEASE,
        guarantee: Guarantee::Fenced,
        fingerprint: Some(Fingerprint { version: Version::Plain, bytes: [7; 32] }),
        payload_hash: None,
        // One of its own, as every request has: the same would be refused as one under another credential.
        rotation: Some(id.hash()),
        terms: None,
        about: About {
            endpoint: ENDPOINT.to_owned(),
            principal: "bench".to_owned(),
            request_id: format!("{number:032x}"),
            ..About::default()
        }
        .into(),
    };
    let fence = match store.claim(request).await.map_err(|error| error.to_string())? {
        ClaimOutcome::Won { fence, .. } => fence,
        other @ (ClaimOutcome::Known { .. }
        | ClaimOutcome::Changed
        | ClaimOutcome::CredentialChanged
        | ClaimOutcome::Entered) => {
            return Err(format!("a record that cannot be filled in: {other:?}"));
        }
    };
    let headers = vec![("content-type".to_owned(), b"application/json".to_vec())];
    let settlement = Settlement::Settle(Answer {
        status: 200,
        headers: headers.into(),
        body: body(),
        outcome_unknown: false,
    });
    match store.settle(&id, fence, settlement, &presets::ietf().lifetime).await {
        Ok(FencedWrite::Done) => Ok(()),
        Ok(FencedWrite::Superseded) => Err("a claim was superseded".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn body() -> Bytes {
    static BODY: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    BODY.get_or_init(answer).clone()
}
