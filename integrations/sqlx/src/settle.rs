//! The store's own statement for a handler's transaction, sent by sqlx. Not `semel.settle`, which knows no lifetimes but
//! those in the record: here the route's own lifetime counts, as in every other settlement.

use std::time::Duration;

use semel_contract::profile::Anchor;
use semel_gate::Grant;
use semel_store::postgres::sql::SETTLE_IN;
use semel_store::{Answer, Written};
use sqlx::{Postgres, Row, Transaction};

/// The number by which `semel.record` knows a settled record.
const SETTLED: i16 = 2;
/// The longest lifetime that is written, so that adding it to a time cannot overflow.
const KEEP_MILLIS_MAX: i64 = 1 << 50;

/// What a savepoint writes, the transaction around it could still take back.
const IN_SAVEPOINT: &str = "a settlement inside a savepoint is refused";

/// Makes the settlement a part of the transaction, if the grant still holds its key.
pub(crate) async fn settle(
    tx: &mut Transaction<'_, Postgres>,
    grant: &Grant,
    answer: &Answer,
) -> Result<Written, sqlx::Error> {
    let (fence, lifetime) = (grant.fence(), grant.lifetime());
    let hash = grant.id().hash();
    let headers = pack(&answer.headers);
    let statement = sqlx::query(SETTLE_IN)
        // A number that does not fit was never given, and matches nothing.
        .bind(i64::try_from(fence.number).unwrap_or(-1))
        .bind(fence.nonce.cast_signed())
        .bind(hash.as_slice())
        .bind(SETTLED)
        .bind(i32::from(answer.status))
        .bind(headers)
        .bind(answer.body.as_ref())
        .bind(answer.outcome_unknown)
        .bind(millis(lifetime.record()))
        .bind(lifetime.anchor == Anchor::Created);
    let row = statement.fetch_optional(&mut **tx).await?;
    match row.map(|row| row.try_get::<bool, _>("top_level")).transpose()? {
        None => Ok(Written::Superseded),
        Some(true) => Ok(Written::Done),
        Some(false) => Err(sqlx::Error::Protocol(IN_SAVEPOINT.to_owned())),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(KEEP_MILLIS_MAX).min(KEEP_MILLIS_MAX)
}

/// Packs headers as `semel.kept_headers` does: length of the name (2 bytes), name, length of the value (4 bytes), value.
fn pack(headers: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (name, value) in headers {
        let name_bytes = u16::try_from(name.len()).expect("a header's name is short");
        let value_bytes = u32::try_from(value.len()).expect("a header's value is bounded");
        packed.extend(name_bytes.to_be_bytes());
        packed.extend(name.as_bytes());
        packed.extend(value_bytes.to_be_bytes());
        packed.extend(value);
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_their_order_their_repeats_and_any_bytes() {
        let headers = [("a".to_owned(), vec![0xff]), ("a".to_owned(), b"bc".to_vec())];
        assert_eq!(pack(&headers), b"\0\x01a\0\0\0\x01\xff\0\x01a\0\0\0\x02bc");
    }

    #[test]
    fn no_lifetime_overflows_a_time() {
        assert_eq!(millis(Duration::from_secs(1)), 1000);
        assert_eq!(millis(Duration::MAX), KEEP_MILLIS_MAX);
    }
}
