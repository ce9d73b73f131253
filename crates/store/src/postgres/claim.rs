//! Claims of absent keys, many in one statement. Whoever does not win finds the record that stands in the way. A claim
//! whose commit is unsure is made again with its nonce: the insert waits for the orphaned one, and so tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_contract::decide::{Claim, Standing};
use semel_contract::time::Timestamp;
use semel_contract::transitions::{self, Claiming};
use tokio_postgres::Row;

use super::batch::Waiting;
use super::link::PgFailure;
use super::patience::Patience;
use super::rows::{
    anchor_number, entry, fence_of, guarantee_number, late, lifetime_millis, lock_number, pack,
    response_bytes, span, stored_nonce, version_number,
};
use super::{Core, replace, sql};
use crate::claims::{ClaimOutcome, ClaimRequest, Entry, StoreError};

/// How often a claim is tried again because the record that stood in the way was gone when it was read.
const ROUNDS_MAX: u32 = 4;
/// How long another claim of the same key is given at first to be over.
const ANOTHER_CLAIM: Duration = Duration::from_millis(2);
/// Records that are read at once, since each may carry a large answer.
const KNOWN_ROWS_MAX: usize = 64;

/// Batches after one in which two claimed the same key that are prepared for that to happen again.
const CONTESTED_BATCHES: u32 = 64;

type Asked = (ClaimRequest, Waiting<ClaimOutcome>);

/// Whether others claim the same keys at the same moment, as far as the last batches tell.
#[derive(Debug, Default)]
pub(super) struct Contest(AtomicU32);

impl Contest {
    /// Whether to be prepared for it.
    fn is_expected(&self) -> bool {
        let fewer = |batches: u32| batches.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }

    /// It happened.
    fn happened(&self) {
        self.0.store(CONTESTED_BATCHES, Ordering::Relaxed);
    }
}

/// Runs one batch. What the batch does not answer is tried singly, beside it.
pub(super) async fn batch(core: Arc<Core>, asked: Vec<Asked>) {
    let requests: Vec<&ClaimRequest> = asked.iter().map(|(request, _)| request).collect();
    let attempted = match core.contest.is_expected() {
        true => attempt(&core, sql::CLAIM_CONTESTED, &requests).await,
        false => match attempt(&core, sql::CLAIM, &requests).await {
            Err(PgFailure::Taken(_)) => {
                core.contest.happened();
                attempt(&core, sql::CLAIM_CONTESTED, &requests).await
            }
            other => other,
        },
    };
    let (answers, unsure) = match attempted {
        Ok(answers) => (answers, None),
        Err(PgFailure::NotSent(error)) => {
            asked.into_iter().for_each(|(_, waiting)| drop(waiting.send(Err(error.clone()))));
            return;
        }
        // One of them may be what the server refuses.
        Err(PgFailure::Refused(_) | PgFailure::Taken(_)) => (vec![None; asked.len()], None),
        Err(PgFailure::Unsure(why)) => (vec![None; asked.len()], Some(why)),
    };
    let patience = Patience::new(unsure);
    for ((request, waiting), answer) in asked.into_iter().zip(answers) {
        if let Some(answer) = answer.filter(|answer| !matches!(answer, ClaimOutcome::Entered)) {
            drop(waiting.send(Ok(answer)));
            continue;
        }
        let (core, patience) = (Arc::clone(&core), patience.clone());
        tokio::spawn(async move {
            let _turn = core.singles.acquire().await;
            drop(waiting.send(claim_one(&core, &request, patience).await));
        });
    }
}

/// Looks for a batch of requests whether their keys are free, and writes nothing. Whoever asks holds a reservation.
pub(super) async fn look(core: Arc<Core>, asked: Vec<Asked>) {
    let mut rest = asked;
    while !rest.is_empty() {
        let some = rest.split_off(rest.len().saturating_sub(KNOWN_ROWS_MAX));
        let requests: Vec<&ClaimRequest> = some.iter().map(|(request, _)| request).collect();
        match read_known(&core, &requests).await {
            Ok((known, now)) => {
                for (request, waiting) in some {
                    let free = ClaimOutcome::Won { fence: fence_of(0, stored_nonce(request.nonce)), now };
                    drop(waiting.send(Ok(stands(&request, &known, now).unwrap_or(free))));
                }
            }
            Err(failure) => {
                let error = failure.of_read();
                some.into_iter().for_each(|(_, waiting)| drop(waiting.send(Err(error.clone()))));
            }
        }
    }
}

/// What stands in the way of a request; `None` when nothing does, or only what the request was decided to replace.
fn stands(request: &ClaimRequest, known: &Known, now: Timestamp) -> Option<ClaimOutcome> {
    match (request.replaces, judge(request, known, now)) {
        (None, judged) => judged,
        (Some(replaced), Some(ClaimOutcome::Known { entry, .. }))
            if transitions::is_replaced(&entry.record, request.how, Some(replaced), now) =>
        {
            None
        }
        (Some(_), Some(judged)) => Some(judged),
        (Some(_), None) => Some(ClaimOutcome::Changed),
    }
}

/// Claims one key by itself.
async fn claim_one(
    core: &Core,
    request: &ClaimRequest,
    mut patience: Patience,
) -> Result<ClaimOutcome, StoreError> {
    let mut rounds = 0;
    loop {
        let attempted = attempt(core, sql::CLAIM_CONTESTED, &[request]).await;
        let failure = match attempted.map(|answers| answers.into_iter().next().flatten()) {
            // Whoever holds the lock may be another claim, which is over in a moment, or this one, whose end was not heard of.
            Ok(Some(ClaimOutcome::Entered)) if patience.is_unsure() => {
                Some(PgFailure::Unsure("the claim may still be under way".to_owned()))
            }
            Ok(Some(ClaimOutcome::Entered)) if rounds < ROUNDS_MAX => {
                rounds += 1;
                tokio::time::sleep(ANOTHER_CLAIM * rounds).await;
                None
            }
            Ok(Some(claimed)) => return Ok(claimed),
            // What stood in the way is gone, or is an expired record under another credential.
            Ok(None) if rounds < ROUNDS_MAX => {
                rounds += 1;
                replace::free_rotation(core, request).await.err()
            }
            Ok(None) => return Ok(ClaimOutcome::Changed),
            Err(failure) => Some(failure),
        };
        if let Some(failure) = failure {
            patience.with(failure).await?;
        }
    }
}

/// One attempt for all of these requests; `None` where it must be tried again. After an error it is the same for all.
async fn attempt(
    core: &Core,
    sql: &str,
    requests: &[&ClaimRequest],
) -> Result<Vec<Option<ClaimOutcome>>, PgFailure> {
    debug_assert!(requests.iter().all(|request| request.how == Claim::New), "others replace a record");
    // One of each key, in the order of the hashes: batches of several processes then never wait in a circle.
    let mut first = BTreeMap::new();
    for (place, request) in requests.iter().enumerate() {
        first.entry(request.id.hash()).or_insert(place);
    }
    let sent: Vec<(&[u8; 16], &ClaimRequest)> =
        first.iter().map(|(hash, place)| (hash, requests[*place])).collect();
    let (told, now) = insert(core, sql, &sent).await?;
    let mut answers: Vec<Option<ClaimOutcome>> = vec![None; requests.len()];
    for (hash, place) in &first {
        if let Some(&(Some(number), late)) = told.get(hash) {
            let nonce = stored_nonce(requests[*place].nonce);
            // The claims are committed: an error from here on leaves them unsure, never untouched.
            let number = if late { renumber(core, number, nonce).await.map_err(unsure)? } else { number };
            answers[*place] = Some(ClaimOutcome::Won { fence: fence_of(number, nonce), now });
        }
    }
    let places: Vec<usize> = (0..requests.len()).filter(|place| answers[*place].is_none()).collect();
    for places in places.chunks(KNOWN_ROWS_MAX) {
        let lost: Vec<&ClaimRequest> = places.iter().map(|place| requests[*place]).collect();
        // Winners keep what they won even if this read fails; the others then ask again by themselves.
        let Ok((known, now)) = read_known(core, &lost).await else { continue };
        for place in places {
            let is_entered = matches!(told.get(&requests[*place].id.hash()), Some((None, _)));
            let judged = judge(requests[*place], &known, now);
            // Without a record it is the transaction of a handler that stands in the way.
            answers[*place] = judged.or_else(|| is_entered.then_some(ClaimOutcome::Entered));
        }
    }
    Ok(answers)
}

fn unsure(failure: PgFailure) -> PgFailure {
    match failure {
        PgFailure::NotSent(error) | PgFailure::Refused(error) | PgFailure::Taken(error) => {
            PgFailure::Unsure(error.to_string())
        }
        PgFailure::Unsure(why) => PgFailure::Unsure(why),
    }
}

/// The numbers that were given, by hash, and whether each came late; none where a handler's transaction holds the key.
type Numbers = BTreeMap<[u8; 16], Number>;
type Number = (Option<i64>, bool);

async fn insert(
    core: &Core,
    sql: &str,
    sent: &[(&[u8; 16], &ClaimRequest)],
) -> Result<(Numbers, Timestamp), PgFailure> {
    let column =
        |of: fn(&ClaimRequest) -> &str| sent.iter().map(|(_, request)| of(request)).collect::<Vec<_>>();
    let number =
        |of: fn(&ClaimRequest) -> i64| sent.iter().map(|(_, request)| of(request)).collect::<Vec<_>>();
    let bytes = |of: fn(&ClaimRequest) -> Option<&[u8]>| {
        sent.iter().map(|(_, request)| of(request)).collect::<Vec<_>>()
    };
    let hash: Vec<&[u8]> = sent.iter().map(|(hash, _)| hash.as_slice()).collect();
    let scope: Vec<&[u8]> = sent.iter().map(|(_, request)| request.id.scope.as_bytes().as_slice()).collect();
    let guarantee: Vec<i16> = sent.iter().map(|(_, request)| guarantee_number(request.guarantee)).collect();
    let version: Vec<Option<i16>> = sent.iter().map(|(_, request)| version_number(request)).collect();
    let tenant: Vec<Option<&str>> = sent.iter().map(|(_, request)| request.about.tenant.as_deref()).collect();
    let generated: Vec<Option<i64>> =
        sent.iter().map(|(_, request)| request.about.client_generated_at.map(Timestamp::millis)).collect();
    let headers: Vec<Vec<u8>> = sent.iter().map(|(_, request)| pack(&request.about.headers)).collect();
    let answer = core
        .link
        .run(
            sql,
            &[
                &hash,
                &scope,
                &column(|request| request.id.key.as_str()),
                &number(|request| stored_nonce(request.nonce)),
                &number(|request| span(request.lease)),
                &number(|request| late(request.late)),
                &guarantee,
                &bytes(|request| request.fingerprint.as_ref().map(|of| of.bytes.as_slice())),
                &version,
                &bytes(|request| request.payload_hash.as_ref().map(<[u8; 32]>::as_slice)),
                &bytes(|request| request.rotation.as_ref().map(<[u8; 16]>::as_slice)),
                &column(|request| &request.about.endpoint),
                &tenant,
                &column(|request| &request.about.principal),
                &generated,
                &headers,
                &column(|request| &request.about.request_id),
                &sent.iter().map(|(_, request)| lifetime_millis(request)).collect::<Vec<_>>(),
                &sent.iter().map(|(_, request)| anchor_number(request)).collect::<Vec<_>>(),
                &sent.iter().map(|(_, request)| response_bytes(request)).collect::<Vec<_>>(),
                &sent.iter().map(|(hash, _)| lock_number(hash)).collect::<Vec<_>>(),
            ],
        )
        .await?;
    Ok((answer.rows.iter().filter_map(number_of).collect(), answer.now))
}

fn number_of(row: &Row) -> Option<([u8; 16], Number)> {
    let hash: Option<&[u8]> = row.get("hash");
    Some((hash?.try_into().ok()?, (row.get("fence"), row.get("late"))))
}

/// A number that was drawn early but took its place late is drawn again: meanwhile another attempt may have had the key
/// under a higher number and have given it back, and numbers of one key only grow.
async fn renumber(core: &Core, number: i64, nonce: i64) -> Result<i64, PgFailure> {
    let answer = core.link.run(sql::RENUMBER, &[&number, &nonce]).await?;
    let moved = answer.rows.first().and_then(|row| row.get::<_, Option<i64>>("fence"));
    moved.ok_or_else(|| PgFailure::Unsure("the claim was gone at once".to_owned()))
}

/// What stands in the way of claims.
struct Known {
    entries: Vec<Entry>,
    rotations: BTreeMap<[u8; 16], usize>,
    places: BTreeMap<[u8; 16], usize>,
}

async fn read_known(core: &Core, lost: &[&ClaimRequest]) -> Result<(Known, Timestamp), PgFailure> {
    let hashes: BTreeSet<[u8; 16]> = lost.iter().map(|request| request.id.hash()).collect();
    let rotations: BTreeSet<[u8; 16]> = lost.iter().filter_map(|request| request.rotation).collect();
    let hashes: Vec<&[u8]> = hashes.iter().map(<[u8; 16]>::as_slice).collect();
    let rotations: Vec<&[u8]> = rotations.iter().map(<[u8; 16]>::as_slice).collect();
    let answer = core.link.read(sql::KNOWN, &[&hashes, &rotations]).await.map_err(PgFailure::Refused)?;
    let mut known = Known { entries: Vec::new(), rotations: BTreeMap::new(), places: BTreeMap::new() };
    for row in &answer.rows {
        let Some(found) = entry(row).map_err(PgFailure::Refused)? else { continue };
        let place = known.entries.len();
        known.places.insert(found.id.hash(), place);
        let rotation = row.get::<_, Option<&[u8]>>("rotation").and_then(|bytes| bytes.try_into().ok());
        if let Some(rotation) = rotation {
            known.rotations.insert(rotation, place);
        }
        known.entries.push(found);
    }
    Ok((known, answer.now))
}

/// What a request that did not win is told; `None` when nothing stands in its way any more.
fn judge(request: &ClaimRequest, known: &Known, now: Timestamp) -> Option<ClaimOutcome> {
    if let Some(place) = known.places.get(&request.id.hash()) {
        let entry = &known.entries[*place];
        assert_eq!(entry.id, request.id, "two keys with one hash: 128 bits of SHA-256 would have to collide");
        return Some(match request.claiming(Some(entry), now) {
            Claiming::Again => ClaimOutcome::Won { fence: entry.record.fence, now },
            // Whether it is what was to be replaced is looked at by whoever asked for that.
            Claiming::Win | Claiming::Known | Claiming::Changed => {
                ClaimOutcome::Known { entry: Box::new(entry.clone()), now }
            }
        });
    }
    let other = known.rotations.get(&request.rotation?)?;
    let standing = Standing::of(Some(&known.entries[*other].record), now);
    (standing != Standing::Expired).then_some(ClaimOutcome::CredentialChanged)
}
