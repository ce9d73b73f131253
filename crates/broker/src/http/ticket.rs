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
    let until = api.broker.time().await.plus(TICKET_LIFE);
    let ticket = seal(&api.broker.0.secret, &authorized.known_by, &mesh, until);
    Ok(Json(json!({"ticket": ticket, "expires_at": until.to_string()})).into_response())
}

fn mac(secret: &[u8], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(b"semel.ticket.1");
    mac.update(text.as_bytes());
    mac
}

/// Writes a ticket.
fn seal(secret: &[u8], by: &KnownBy, mesh: &str, until: Timestamp) -> String {
    let said = match by {
        KnownBy::Token(sha256) => json!(["token", sha256, mesh, until.millis()]),
        KnownBy::Name(_, member) => json!(["name", member, mesh, until.millis()]),
    };
    let text = URL_SAFE_NO_PAD.encode(said.to_string());
    let signature = URL_SAFE_NO_PAD.encode(mac(secret, &text).finalize().into_bytes());
    format!("{text}.{signature}")
}

/// Reads a ticket of this mesh that has not expired.
pub(crate) fn open(secret: &[u8], ticket: &str, mesh: &str, now: Timestamp) -> Option<KnownBy> {
    let (text, signature) = ticket.split_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    mac(secret, text).verify_slice(&signature).ok()?;
    let said: (String, String, String, i64) =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (kind, name, of, until) = said;
    if of != mesh || now.millis() >= until {
        return None;
    }
    match kind.as_str() {
        "token" => Some(KnownBy::Token(name)),
        "name" => Some(KnownBy::Name(of, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_its_mesh_its_time_and_its_secret() {
        let now = Timestamp::from_millis(1_000_000);
        let by = KnownBy::Token("ab".to_owned());
        let ticket = seal(b"secret", &by, "m", now.plus(TICKET_LIFE));
        assert_eq!(open(b"secret", &ticket, "m", now), Some(by));
        assert_eq!(open(b"secret", &ticket, "other", now), None);
        assert_eq!(open(b"another", &ticket, "m", now), None);
        assert_eq!(open(b"secret", &ticket, "m", now.plus(TICKET_LIFE)), None);
        let (text, signature) = ticket.split_once('.').unwrap();
        assert_eq!(open(b"secret", &format!("{text}x.{signature}"), "m", now), None);
        assert_eq!(open(b"secret", text, "m", now), None);
    }
}
