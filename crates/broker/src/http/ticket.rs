//! Tickets: EventSource and WebSocket cannot send headers, so a member asks for a short-lived text that goes in the query. It is
//! signed, names the credential that it was made with, and is worth no more than that one.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use semel_contract::time::Timestamp;
use serde_json::json;
use sha2::Sha256;

use super::Api;
use super::answer::Told;
use crate::directory::KnownBy;
use crate::limits::TICKET_LIFE;

/// Makes a ticket.
pub(crate) async fn make(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    parts: Parts,
) -> Result<Response, Told> {
    let authorized = api.authorize(&parts, &mesh).await?;
    let usual = api.broker.time().await.plus(TICKET_LIFE);
    let until = authorized.expires.map_or(usual, |expires| usual.min(expires));
    let ticket = seal(&api.broker.0.secret, &authorized.known_by, &mesh, until, authorized.expires);
    Ok(Json(json!({"ticket": ticket, "expires_at": until.to_string()})).into_response())
}

fn mac(secret: &[u8], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(b"semel.ticket.1");
    mac.update(text.as_bytes());
    mac
}

/// Writes a ticket. What is opened with it ends with the credential.
fn seal(secret: &[u8], by: &KnownBy, mesh: &str, until: Timestamp, expires: Option<Timestamp>) -> String {
    let expires = expires.map(Timestamp::millis);
    let said = match by {
        KnownBy::Token(sha256) => json!(["token", sha256, mesh, until.millis(), expires]),
        KnownBy::Name(_, member) => json!(["name", member, mesh, until.millis(), expires]),
    };
    let text = URL_SAFE_NO_PAD.encode(said.to_string());
    let signature = URL_SAFE_NO_PAD.encode(mac(secret, &text).finalize().into_bytes());
    format!("{text}.{signature}")
}

/// Reads a ticket of this mesh that has not expired: who it is, and when the credential ends that it was made with.
pub(crate) fn open(
    secret: &[u8],
    ticket: &str,
    mesh: &str,
    now: Timestamp,
) -> Option<(KnownBy, Option<Timestamp>)> {
    let (text, signature) = ticket.split_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    mac(secret, text).verify_slice(&signature).ok()?;
    let said: (String, String, String, i64, Option<i64>) =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (kind, name, of, until, expires) = said;
    if of != mesh || now.millis() >= until {
        return None;
    }
    let by = match kind.as_str() {
        "token" => KnownBy::Token(name),
        "name" => KnownBy::Name(of, name),
        _ => return None,
    };
    Some((by, expires.map(Timestamp::from_millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_its_mesh_its_time_and_its_secret() {
        let now = Timestamp::from_millis(1_000_000);
        let by = KnownBy::Token("ab".to_owned());
        let ticket = seal(b"secret", &by, "m", now.plus(TICKET_LIFE), Some(now));
        assert_eq!(open(b"secret", &ticket, "m", now), Some((by, Some(now))));
        assert_eq!(open(b"secret", &ticket, "other", now), None);
        assert_eq!(open(b"another", &ticket, "m", now), None);
        assert_eq!(open(b"secret", &ticket, "m", now.plus(TICKET_LIFE)), None);
        let (text, signature) = ticket.split_once('.').unwrap();
        assert_eq!(open(b"secret", &format!("{text}x.{signature}"), "m", now), None);
        assert_eq!(open(b"secret", text, "m", now), None);
    }
}
