//! Writes that depend on a record which is already there: it is locked, judged by the same table as everywhere, and
//! written, in one short transaction. The lock waits for a handler that is settling the record at this moment; if the
//! handler commits, its record counts.

use semel_contract::decide::Standing;
use semel_contract::profile::Lifetime;
use semel_contract::record::{Fence, Guarantee, State};
use semel_contract::time::Timestamp;
use semel_contract::transitions::{Claiming, Resolving, is_sealable};

use super::Core;
use super::link::{PgFailure, Tx};
use super::patience::Patience;
use super::rows::{
    anchor_number, entry, fence_of, guarantee_number, late, lifetime_millis, lock_number, pack,
    response_bytes, span, state_number, stored_nonce, stored_number, version_number,
};
use super::settle::Write;
use super::sql::{self, entry, timed};
use crate::admin::action;
use crate::claims::{About, ClaimOutcome, ClaimRequest, Entry, Id, Resolution, Resolved, Sealed, StoreError};

/// How often a seal is tried again because somebody claimed the key between looking and sealing.
const SEAL_ROUNDS_MAX: u32 = 8;

/// Locks the record of a key. Waits for whoever is writing it, and then sees what they wrote.
const LOCK: &str = concat!(
    "SELECT ",
    entry!(),
    "
FROM semel.record r LEFT JOIN LATERAL (SELECT NULL::bigint AS lease_until) l ON true
WHERE r.hash = $1::bytea AND r.scope = $2::bytea AND r.key = $3::text
FOR UPDATE OF r"
);

/// Locks the lease of a claim that is locked, so that no renewal comes in between. One that was never renewed is given its
/// first lease ($5) as a lease of its own; what is no claim ($6) has none.
const LOCK_LEASE: &str = timed!(
    ", l AS (
    INSERT INTO semel.lease AS known (fence, lease_until) SELECT $4::bigint, $5::bigint WHERE $6::boolean
    ON CONFLICT (fence) DO UPDATE SET lease_until = known.lease_until
    RETURNING lease_until
)
SELECT t.now, t.wall, t.revision, l.lease_until FROM t LEFT JOIN l ON true"
);

const REPLACE: &str = "
WITH moved AS (
    UPDATE semel.record SET fence = nextval('semel.fence'), nonce = $2::bigint, state = 1, guarantee = $3::smallint,
        fingerprint = $4::bytea, fingerprint_version = $5::smallint, payload_hash = $6::bytea, rotation = $7::bytea,
        created_at = $8::bigint, first_lease_until = $9::bigint, late_until = $10::bigint, endpoint = $11::text,
        tenant = $12::text, principal = $13::text, client_generated_at = $14::bigint, request_headers = $15::bytea,
        request_id = $16::text, settled_at = NULL, expires_at = NULL, status = NULL, headers = NULL, body = NULL,
        outcome_unknown = false, lifetime_ms = $17::bigint, anchor = $18::smallint, max_response_bytes = $19::integer
    WHERE fence = $1::bigint RETURNING fence
), ended AS (
    UPDATE semel.lease SET ended = true WHERE fence = $1::bigint
), opened AS (
    INSERT INTO semel.opened (first, lease_until, fences) SELECT fence, $9::bigint, ARRAY[fence] FROM moved
)
SELECT fence FROM moved";

/// An expired record gives its place up to the same request under another credential.
const FREE_ROTATION: &str = timed!(
    ", freed AS (
    UPDATE semel.record SET rotation = NULL
    WHERE rotation = $4::bytea AND hash <> $5::bytea AND state IN (2, 3, 4, 6) AND expires_at <= (SELECT now FROM t)
)
SELECT now, wall, revision FROM t"
);

const ROTATED: &str = "SELECT FROM semel.record WHERE rotation = $1::bytea AND hash <> $2::bytea";

const RESOLVE: &str = "
WITH gone AS (
    DELETE FROM semel.record WHERE fence = $1::bigint AND $9::boolean
), moved AS (
    UPDATE semel.record SET fence = nextval('semel.fence'), state = $2::smallint, status = $3::integer,
        headers = $4::bytea, body = $5::bytea, outcome_unknown = $6::boolean, settled_at = $7::bigint,
        expires_at = $7::bigint + $8::bigint, lifetime_ms = $7::bigint + $8::bigint - created_at
    WHERE fence = $1::bigint AND NOT $9::boolean
), ended AS (
    UPDATE semel.lease SET ended = true WHERE fence = $1::bigint
)
INSERT INTO semel.audit (at, action, actor, fence, reason, count, hash)
VALUES ($7::bigint, $13::text, $10::text, $11::text, $12::text, 1, $14::bytea)";

/// Keeps the transaction of a handler away from a key, unless one holds it.
pub(super) const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1::bigint)";

const REMOVE: &str = "DELETE FROM semel.record WHERE fence = $1::bigint";

const SEAL: &str = "
INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, tenant, principal, state, guarantee, created_at,
    first_lease_until, late_until, settled_at, expires_at, lifetime_ms, client_generated_at, request_headers, request_id)
VALUES (nextval('semel.fence'), 0, $1::bytea, $2::bytea, $3::text, $4::text, $5::text, $6::text, $7::smallint,
    $8::smallint, $9::bigint, $9::bigint, $9::bigint, $9::bigint, $9::bigint + $10::bigint, $10::bigint, $11::bigint,
    $12::bytea, $13::text)
ON CONFLICT DO NOTHING RETURNING fence";

const NOTE_SEAL: &str = "
INSERT INTO semel.audit (at, action, actor, fence, reason, count, hash)
VALUES ($1::bigint, $2::text, $3::text, $4::text, $5::text, 1, $6::bytea)";

/// A record that nobody else can write until the transaction ends.
struct Locked {
    entry: Entry,
    now: Timestamp,
}

async fn lock(tx: &Tx<'_>, id: &Id) -> Result<Option<Locked>, PgFailure> {
    let hash = id.hash();
    let rows = tx.query(LOCK, &[&hash.as_slice(), &id.scope.as_bytes().as_slice(), &id.key.as_str()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let Some(mut entry) = entry(row).map_err(PgFailure::Refused)? else { return Ok(None) };
    let (first, is_claim) = (entry.record.lease_until.millis(), entry.record.state == State::Claimed);
    let lease = tx.run(LOCK_LEASE, &[&stored_number(entry.record.fence), &first, &is_claim]).await?;
    if let Some(until) = lease.rows.first().and_then(|row| row.get::<_, Option<i64>>("lease_until")) {
        entry.record.lease_until = Timestamp::from_millis(until);
    }
    Ok(Some(Locked { entry, now: lease.now }))
}

/// Claims a key over the record that was decided upon. An unsure commit is looked into by making the same request again.
pub(super) async fn claim(core: &Core, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
    let mut patience = Patience::new(None);
    loop {
        match claim_once(core, request).await {
            // An earlier try, whose end was not heard of, may hold the lock.
            Ok(ClaimOutcome::Entered) if patience.is_unsure() => {
                patience.with(PgFailure::Unsure("the claim may still be under way".to_owned())).await?;
            }
            Ok(claimed) => return Ok(claimed),
            Err(failure) => patience.with(failure).await?,
        }
    }
}

async fn claim_once(core: &Core, request: &ClaimRequest) -> Result<ClaimOutcome, PgFailure> {
    free_rotation(core, request).await?;
    let mut wire = core.link.connection().await?;
    let tx = wire.begin(&core.link).await?;
    let free = tx.query(TRY_LOCK, &[&lock_number(&request.id.hash())]).await?;
    if free.first().is_none_or(|row| !row.get::<_, bool>(0)) {
        tx.roll_back().await;
        return Ok(ClaimOutcome::Entered);
    }
    let Some(Locked { entry, now }) = lock(&tx, &request.id).await? else {
        tx.roll_back().await;
        return Ok(ClaimOutcome::Changed);
    };
    let fence = entry.record.fence;
    match request.claiming(Some(&entry), now) {
        Claiming::Win => {}
        Claiming::Again => {
            tx.roll_back().await;
            return Ok(ClaimOutcome::Won { fence, now });
        }
        Claiming::Known | Claiming::Changed => {
            tx.roll_back().await;
            return Ok(ClaimOutcome::Known { entry: Box::new(entry), now });
        }
    }
    if let Some(rotation) = request.rotation {
        let hash = request.id.hash();
        if !tx.query(ROTATED, &[&rotation.as_slice(), &hash.as_slice()]).await?.is_empty() {
            tx.roll_back().await;
            return Ok(ClaimOutcome::CredentialChanged);
        }
    }
    let fence = write_claim(&tx, fence, request, now).await?;
    tx.commit().await?;
    Ok(ClaimOutcome::Won { fence, now })
}

async fn write_claim(
    tx: &Tx<'_>,
    old: Fence,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Fence, PgFailure> {
    let nonce = stored_nonce(request.nonce);
    let lease_until = now.millis() + span(request.lease);
    let about = &request.about;
    let rows = tx
        .query(
            REPLACE,
            &[
                &stored_number(old),
                &nonce,
                &guarantee_number(request.guarantee),
                &request.fingerprint.as_ref().map(|of| of.bytes.as_slice()),
                &version_number(request),
                &request.payload_hash.as_ref().map(<[u8; 32]>::as_slice),
                &request.rotation.as_ref().map(<[u8; 16]>::as_slice),
                &now.millis(),
                &lease_until,
                &(lease_until + late(request.late)),
                &about.endpoint,
                &about.tenant,
                &about.principal,
                &about.client_generated_at.map(Timestamp::millis),
                &pack(&about.headers),
                &about.request_id,
                &lifetime_millis(request),
                &anchor_number(request),
                &response_bytes(request),
            ],
        )
        .await?;
    let row = rows.first().expect("a row that is locked is there to be written");
    Ok(fence_of(row.get("fence"), nonce))
}

/// Takes the mark of rotation from an expired record under another credential, if there is one in this request's way.
pub(super) async fn free_rotation(core: &Core, request: &ClaimRequest) -> Result<(), PgFailure> {
    let Some(rotation) = request.rotation else { return Ok(()) };
    let hash = request.id.hash();
    core.link.run(FREE_ROTATION, &[&rotation.as_slice(), &hash.as_slice()]).await.map(drop)
}

/// Resolves an unknown outcome, with its row in the audit trail.
pub(super) async fn resolve(
    core: &Core,
    id: &Id,
    fence: Fence,
    resolution: Resolution,
    lifetime: &Lifetime,
    by: &str,
    reason: &str,
) -> Result<Resolved, PgFailure> {
    let mut wire = core.link.connection().await?;
    let tx = wire.begin(&core.link).await?;
    let locked = lock(&tx, id).await?.filter(|locked| locked.entry.record.fence == fence);
    let Some(Locked { entry, now }) = locked else {
        tx.roll_back().await;
        return Ok(Resolved::NotUnknown);
    };
    let refused = match entry.resolving(&resolution, now) {
        Resolving::Write => None,
        Resolving::NotUnknown => Some(Resolved::NotUnknown),
        Resolving::TooEarly => Some(Resolved::TooEarly { until: entry.late_until }),
    };
    if let Some(refused) = refused {
        tx.roll_back().await;
        return Ok(refused);
    }
    let done = resolution.action();
    let settlement = resolution.into_settlement();
    let write = Write::of(settlement, lifetime);
    tx.query(
        RESOLVE,
        &[
            &stored_number(fence),
            &state_number(write.state),
            &write.status(),
            &write.headers(),
            &write.body(),
            &write.outcome_unknown(),
            &now.millis(),
            &write.keep_ms,
            &write.removes,
            &by,
            &fence.to_string(),
            &reason,
            &done,
            &id.hash().as_slice(),
        ],
    )
    .await?;
    tx.commit().await?;
    core.announce(id.hash());
    Ok(Resolved::Done)
}

/// Who does something by hand, and why.
type By<'a> = Option<(&'a str, &'a str)>;

/// Cancels a key that has not taken effect; on the trail, where somebody does it by hand.
pub(super) async fn seal(
    core: &Core,
    id: &Id,
    about: &About,
    lifetime: &Lifetime,
    by: By<'_>,
) -> Result<Sealed, PgFailure> {
    for _ in 0..SEAL_ROUNDS_MAX {
        let (known, now) = core.look_up(id).await.map_err(PgFailure::Refused)?;
        // A key in use is not waited for: its record is the answer.
        if let Some(entry) = known.filter(|entry| !is_sealable(Standing::of(Some(&entry.record), now))) {
            return Ok(Sealed::Known(Box::new(entry)));
        }
        if let Some(sealed) = seal_once(core, id, about, lifetime, by).await? {
            return Ok(sealed);
        }
    }
    Err(PgFailure::Refused(StoreError::Unavailable("others claim this key again and again".to_owned())))
}

/// One attempt; `None` when somebody claimed the key meanwhile, and it must be looked at again.
async fn seal_once(
    core: &Core,
    id: &Id,
    about: &About,
    lifetime: &Lifetime,
    by: By<'_>,
) -> Result<Option<Sealed>, PgFailure> {
    let mut wire = core.link.connection().await?;
    let tx = wire.begin(&core.link).await?;
    let (now, before) = match lock(&tx, id).await? {
        Some(Locked { entry, now }) if is_sealable(Standing::of(Some(&entry.record), now)) => {
            tx.query(REMOVE, &[&stored_number(entry.record.fence)]).await?;
            (now, Some(entry.record.fence.to_string()))
        }
        Some(Locked { entry, .. }) => {
            tx.roll_back().await;
            return Ok(Some(Sealed::Known(Box::new(entry))));
        }
        None => (tx.run(sql::TIME, &[]).await?.now, None),
    };
    let hash = id.hash();
    let sealed = tx
        .query(
            SEAL,
            &[
                &hash.as_slice(),
                &id.scope.as_bytes().as_slice(),
                &id.key.as_str(),
                &about.endpoint,
                &about.tenant,
                &about.principal,
                &state_number(State::Sealed),
                &guarantee_number(Guarantee::None),
                &now.millis(),
                &span(lifetime.record()),
                &about.client_generated_at.map(Timestamp::millis),
                &pack(&about.headers),
                &about.request_id,
            ],
        )
        .await?;
    if sealed.is_empty() {
        tx.roll_back().await;
        return Ok(None);
    }
    if let Some((by, reason)) = by {
        let at = now.millis();
        tx.query(NOTE_SEAL, &[&at, &action::SEAL, &by, &before, &reason, &hash.as_slice()]).await?;
    }
    tx.commit().await?;
    core.announce(hash);
    Ok(Some(Sealed::Done))
}
