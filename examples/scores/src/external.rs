//! The external service as the score API asks it, beside what the relay writes: for sign-ins and for its list. Never writes a score.

use std::sync::Arc;
use std::time::Duration;

use semel_delivery::credentials::Credentials;
use semel_delivery::message::Answer;
use semel_delivery::relay::given::SharedWallet;
use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::{http1::Http1, url};
use serde_json::Value;

/// The one target of this program.
pub const TARGET: &str = "scores";
/// How long the external service may take for a sign-in or a list.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where it is, and what signs leaders in there, for every replica.
#[derive(Clone, Debug)]
pub struct External {
    /// Scheme, host and port.
    pub origin: String,
    /// The leaders' tokens.
    pub wallet: Arc<SharedWallet>,
}

impl External {
    /// What it answers, in this leader's name; nothing where there is no answer.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        leader: Option<&str>,
        body: &Value,
    ) -> Option<Answer> {
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(leader) = leader {
            headers.extend(self.wallet.credential_for(leader, TARGET, &self.origin).await.ok()??.headers);
        }
        let outgoing = Outgoing {
            method: method.to_owned(),
            target: url::Target::absolute(&format!("{}{path}", self.origin)).ok()?,
            headers,
            body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
            timeout: PATIENCE,
            may_send: MaySend::always(),
        };
        match Http1::new().send(outgoing).await {
            Sent::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}
