//! Connections that changed their protocol: bytes pass both ways until either side ends.

use axum_core::body::Body;
use http::Response;
use http::header::{self, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;

use semel_http::PooledBody;
use semel_http::headers;

/// Answers the client as the service did, and joins the two connections once both have changed. Keeps its room until
/// either ends.
pub(crate) fn open(
    client: OnUpgrade,
    mut response: Response<PooledBody>,
    room: OwnedSemaphorePermit,
) -> Response<Body> {
    let service = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    let protocol = parts.headers.get(header::UPGRADE).cloned();
    headers::strip_hop_by_hop(&mut parts.headers);
    headers::strip_own(&mut parts.headers, None);
    if let Some(protocol) = protocol {
        parts.headers.insert(header::UPGRADE, protocol);
    }
    parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    tokio::spawn(async move {
        let _room = room;
        // Either may still be refused or break off; then the other is closed as well.
        let (Ok(client), Ok(service)) = (client.await, service.await) else { return };
        let (mut client, mut service) = (TokioIo::new(client), TokioIo::new(service));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut service).await {
            tracing::debug!(%error, "a connection that changed its protocol broke off");
        }
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    answer
}
