//! Ends of attempts, many in one statement. Whoever is left out is looked at singly: the same answer before is success,
//! anything else is superseded. A settlement whose commit is unsure is made again: it waits for the orphaned one.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, State};
use semel_contract::transitions;

use super::batch::Waiting;
use super::link::PgFailure;
use super::patience::Patience;
use super::rows::{pack, span, state_number, stored_nonce, stored_number};
use super::{Core, sql};
use crate::claims::{Answer, Entry, FencedWrite, Id, Settlement, StoreError};

/// Bytes of answers in one statement; a larger batch is sent in parts.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// What is written at the end of an attempt.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) id: Id,
    pub(super) fence: Fence,
    pub(super) write: Write,
}

/// The new values of a record.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) state: State,
    pub(super) answer: Option<Answer>,
    /// How long it is kept from then on; `None` for what never expires.
    pub(super) keep_ms: Option<i64>,
    /// Whether that counts from the first claim, else from now.
    pub(super) from_created: bool,
    /// Whether nothing of it is kept.
    pub(super) removes: bool,
}

impl Write {
    /// What a settlement writes under this lifetime.
    pub(super) fn of(settlement: Settlement, lifetime: &Lifetime) -> Self {
        let state = settlement.state();
        let keep = transitions::keep(state, lifetime);
        let from_created = transitions::counts_from_claim(state, lifetime);
        let removes = state == State::Released && keep.is_none();
        Self { state, answer: settlement.into_kept(), keep_ms: keep.map(span), from_created, removes }
    }

    pub(super) fn status(&self) -> Option<i32> {
        self.answer.as_ref().map(|answer| i32::from(answer.status))
    }

    pub(super) fn headers(&self) -> Option<Vec<u8>> {
        self.answer.as_ref().map(|answer| pack(&answer.headers))
    }

    pub(super) fn body(&self) -> Option<&[u8]> {
        self.answer.as_ref().map(|answer| answer.body.as_ref())
    }

    pub(super) fn outcome_unknown(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.outcome_unknown)
    }

    fn is_said_by(&self, entry: &Entry) -> bool {
        entry.record.state == self.state && entry.answer == self.answer
    }
}

type Asked = (Ending, Waiting<FencedWrite>);

/// Runs one batch, in parts where it is large.
pub(super) async fn batch(core: Arc<Core>, mut asked: Vec<Asked>) {
    while !asked.is_empty() {
        let rest = asked.split_off(chunk_len(&asked));
        settle_chunk(&core, asked).await;
        asked = rest;
    }
}

/// How many fit into one statement; at least one.
fn chunk_len(asked: &[Asked]) -> usize {
    let mut bytes = 0;
    let fits = asked.iter().take_while(|(ending, _)| {
        bytes += ending.write.body().map_or(0, <[u8]>::len);
        bytes <= BATCH_BYTES_MAX
    });
    fits.count().max(1)
}

async fn settle_chunk(core: &Arc<Core>, asked: Vec<Asked>) {
    let mut numbers = BTreeSet::new();
    // Two settlements of one number in one batch: the second is looked at once the first is there.
    let sent: Vec<&Ending> =
        asked.iter().map(|(ending, _)| ending).filter(|ending| numbers.insert(ending.fence.number)).collect();
    let (done, unsure) = match attempt(core, sql::SETTLE, &sent).await {
        Ok(done) => (done, None),
        Err(PgFailure::NotSent(error)) => {
            asked.into_iter().for_each(|(_, waiting)| drop(waiting.send(Err(error.clone()))));
            return;
        }
        Err(PgFailure::Refused(_) | PgFailure::Taken(_)) => (BTreeSet::new(), None),
        Err(PgFailure::Unsure(why)) => (BTreeSet::new(), Some(why)),
    };
    let patience = Patience::new(unsure);
    let mut first = BTreeSet::new();
    for (ending, waiting) in asked {
        if done.contains(&stored_number(ending.fence)) && first.insert(ending.fence.number) {
            core.announce(ending.id.hash());
            drop(waiting.send(Ok(FencedWrite::Done)));
            continue;
        }
        let (core, patience) = (Arc::clone(core), patience.clone());
        tokio::spawn(async move {
            let _turn = core.singles.acquire().await;
            let written = settle_one(&core, &ending, patience).await;
            core.announce(ending.id.hash());
            drop(waiting.send(written));
        });
    }
}

/// Settles one by itself.
async fn settle_one(core: &Core, ending: &Ending, mut patience: Patience) -> Result<FencedWrite, StoreError> {
    loop {
        match settle_or_examine(core, ending, patience.is_unsure()).await {
            Ok(written) => return Ok(written),
            Err(failure) => patience.with(failure).await?,
        }
    }
}

async fn settle_or_examine(core: &Core, ending: &Ending, again: bool) -> Result<FencedWrite, PgFailure> {
    let done = attempt(core, sql::SETTLE_WAITING, &[ending]).await?;
    if !done.is_empty() {
        return Ok(FencedWrite::Done);
    }
    // The write above waited for whoever was writing the row, so that this read is final.
    let (entry, _) = core.look_up(&ending.id).await.map_err(PgFailure::Refused)?;
    match entry.filter(|entry| entry.record.fence == ending.fence) {
        Some(entry) if ending.write.is_said_by(&entry) => Ok(FencedWrite::Done),
        // Nothing under this fence is left, which is what the first attempt at this release wanted.
        None if again && ending.write.removes => Ok(FencedWrite::Done),
        Some(_) | None => Ok(FencedWrite::Superseded),
    }
}

/// One attempt for all of these; the numbers of those that were written.
async fn attempt(core: &Core, sql: &str, endings: &[&Ending]) -> Result<BTreeSet<i64>, PgFailure> {
    let write = endings.iter().map(|ending| &ending.write);
    let fence: Vec<i64> = endings.iter().map(|ending| stored_number(ending.fence)).collect();
    let nonce: Vec<i64> = endings.iter().map(|ending| stored_nonce(ending.fence.nonce)).collect();
    let hash: Vec<Vec<u8>> = endings.iter().map(|ending| ending.id.hash().to_vec()).collect();
    let state: Vec<i16> = write.clone().map(|write| state_number(write.state)).collect();
    let status: Vec<Option<i32>> = write.clone().map(Write::status).collect();
    let headers: Vec<Option<Vec<u8>>> = write.clone().map(Write::headers).collect();
    let body: Vec<Option<&[u8]>> = write.clone().map(Write::body).collect();
    let outcome_unknown: Vec<bool> = write.clone().map(Write::outcome_unknown).collect();
    let keep_ms: Vec<Option<i64>> = write.clone().map(|write| write.keep_ms).collect();
    let from_created: Vec<bool> = write.clone().map(|write| write.from_created).collect();
    let removes: Vec<bool> = write.map(|write| write.removes).collect();
    let answer = core
        .link
        .run(
            sql,
            &[
                &fence,
                &nonce,
                &hash,
                &state,
                &status,
                &headers,
                &body,
                &outcome_unknown,
                &keep_ms,
                &from_created,
                &removes,
            ],
        )
        .await?;
    Ok(answer.rows.iter().filter_map(|row| row.get::<_, Option<i64>>("fence")).collect())
}
