//! A connection of one's own, for tools that say themselves when one is opened and when it is hung up: one request after
//! another, each sent once, whatever comes of it.

use std::fmt;
use std::future;
use std::sync::Arc;

use axum_core::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connect::{Connector, greet};
use super::connection::{Connection, Tried};
use super::{NoAnswer, Protocol, Upstream};
use crate::HttpError;
use crate::error_chain::error_chain;
use crate::first_byte::MaySend;
use crate::tls::client_tls;

/// A connection of one's own. To drop it is to hang up, whatever is under way.
pub struct OwnConnection(Connection);

impl fmt::Debug for OwnConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnConnection").field(&self.0).finish()
    }
}

impl OwnConnection {
    /// Opens a connection to a service, within its `connect_timeout`. Sends nothing.
    ///
    /// # Errors
    /// The service cannot be reached, or its certificates cannot be read.
    pub async fn open(upstream: &Upstream) -> Result<Self, HttpError> {
        let tls = match upstream.target.is_tls() {
            true => client_tls(upstream.ca.as_deref()).map(Arc::new),
            false => Err("there is no TLS".into()),
        };
        Ok(Self(Connector::new(upstream, tls)?.connect().await?))
    }

    /// A connection over a stream that is open already, such as a socket in the file system. It speaks HTTP/1.1.
    ///
    /// # Errors
    /// The stream has ended.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, HttpError> {
        greet(Box::new(stream), Protocol::Http1).await.map(Self).map_err(|error| error_chain(&error).into())
    }

    /// Whether another request can be sent on it, as far as is known.
    pub fn is_open(&self) -> bool {
        self.0.is_ready()
    }

    /// Sends a request as it stands, and waits until an answer begins for as long as the caller does: one that drops this
    /// future, or does not read the answer to its end, should drop the connection too.
    ///
    /// # Errors
    /// There is no answer; says whether something was sent.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, NoAnswer> {
        if !self.0.ready().await {
            return Err(NoAnswer::NotSent("the connection has ended".to_owned()));
        }
        match self.0.send(request, MaySend::always(), future::pending()).await {
            Tried::Answered(response) => Ok(response),
            Tried::HandedBack(_, why) => Err(NoAnswer::NotSent(why)),
            Tried::Broken(why) => Err(why),
        }
    }
}
