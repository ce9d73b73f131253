//! The same guarantee without HTTP: an operation under a key runs once, and its answer is given again.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use semel_contract::identity::Caller;
use semel_contract::key::{Format, Key, KeyPolicy, RequiredHeader};
use semel_contract::problem::{Kind, Problem};
use semel_contract::request;
use semel_store::Answer;
use tower_service::Service;

use crate::answer;
use crate::arrival::{Arrival, Reading, Whole};
use crate::attempt::Job;
use crate::context::Context;
use crate::grant::Grant;
use crate::identity::{Credential, Lines, Verified};
use crate::layer::GateLayer;
use crate::operations::{METHOD, PATH};
use crate::pipeline::Deciding;
use crate::route::Route;

/// Where a client's own number of its transaction travels, and under which name it is kept with the record.
const CLIENT_TX_ID: &str = "x-client-tx-id";

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnceOutcome {
    /// The answer, of this run or of the first.
    pub answer: Answer,
    /// Whether it was given again rather than made.
    pub replayed: bool,
}

impl GateLayer {
    /// Runs an operation once under a key. A JSON payload is recognised whatever its spelling; the operation's answer is
    /// kept or released as its status and the route's profile say, exactly as a handler's would be. A key that was used
    /// before scope or fingerprint of the route were changed is known; one that was used under another name is, where the
    /// route says so ([`Route::former_names`]). The client's own number of its transaction is kept with the record, where there is one,
    /// as `X-Client-Tx-Id` is that comes by HTTP; the other headers that a profile requires are not asked for.
    ///
    /// # Errors
    /// The refusal that a client would have got.
    pub async fn once<F, R>(
        &self,
        route: &Route,
        caller: &Caller,
        key: &str,
        client_tx_id: Option<&str>,
        payload: impl Into<Bytes>,
        operation: F,
    ) -> Result<OnceOutcome, Problem>
    where
        F: FnOnce(Grant) -> R + Send + 'static,
        R: Future + Send + 'static,
        R::Output: IntoResponse,
    {
        let payload = payload.into();
        let (parts, ()) = Request::post(PATH).body(()).expect("a plain request can be built").into_parts();
        let key = Key::parse(&route.profile.key.format, key)?;
        let kept = client_tx_id.map(|value| client_header(&route.profile.key, value)).transpose()?;
        let request_id = format!("{:016x}", (self.0.entropy)());
        let (forms, named) = self.0.operations.forms(&self.0.forms, route);
        let view = forms.view(&self.0.meters).await?;
        let verified = Verified::new(caller.clone());
        let asked = (METHOD, PATH);
        let formers = view.callers(&named, asked, &parts, &verified).await;
        let body = request::Body::new(None, &payload);
        let read = {
            let reading = Reading {
                route,
                parts: &parts,
                body: &body,
                caller,
                credential: Credential::Verified,
                request_id: &request_id,
                secrets: &self.0.fingerprint_secrets,
                has_headers: false,
                by_host: false,
                formers: &formers,
                as_of: view.asked_at,
            };
            Arrival::read(&reading, key)
        };
        let mut arrival = read?;
        drop((body, formers));
        Arc::make_mut(&mut arrival.about).headers.extend(kept);
        arrival.recognise(self.0.asked()).await?;
        let context = Arc::new(Context {
            shared: Arc::clone(&self.0),
            route: Arc::new(route.clone()),
            arrival,
            request_id,
            arrived: tokio::time::Instant::now(),
            caller: caller.clone(),
            over_limit: None,
        });
        let job = Job { context, inner: Operation(Some(operation)), whole: Whole { parts, body: payload } };
        let (parts, body) = Deciding::new(job).decide(None).await?.into_parts();
        let bytes = body
            .collect()
            .await
            .map_err(|error| Problem::new(Kind::UpstreamReset, error.to_string()))?
            .to_bytes();
        let replayed = parts.headers.contains_key(answer::REPLAYED);
        let outcome_unknown = parts.headers.contains_key(answer::OUTCOME);
        let mut answer = answer::kept(&parts, bytes, outcome_unknown);
        let is_kept = |(name, _): &&(String, Vec<u8>)| name != answer::REPLAYED.as_str();
        answer.headers = answer.headers.iter().filter(is_kept).cloned().collect();
        Ok(OnceOutcome { answer, replayed })
    }
}

/// The header that is kept of a client's number, once it is what the profile requires of it.
fn client_header(policy: &KeyPolicy, value: &str) -> Result<(String, String), Problem> {
    let named =
        policy.require_headers.iter().find(|required| required.name.eq_ignore_ascii_case(CLIENT_TX_ID));
    let any = || RequiredHeader { name: CLIENT_TX_ID.to_owned(), format: Format::Printable255 };
    let policy = KeyPolicy { require_headers: vec![named.cloned().unwrap_or_else(any)], ..policy.clone() };
    let line = HeaderValue::from_str(value)
        .map_err(|_| Problem::new(Kind::HeaderMissing, format!("{CLIENT_TX_ID} must be text")))?;
    let lines: HeaderMap = [(HeaderName::from_static(CLIENT_TX_ID), line)].into_iter().collect();
    let values = policy.read_required(&Lines(&lines))?;
    Ok((CLIENT_TX_ID.to_owned(), values.concat()))
}

/// An operation, as the service that an attempt runs.
struct Operation<F>(Option<F>);

impl<F, R> Service<Request<Body>> for Operation<F>
where
    F: FnOnce(Grant) -> R + Send + 'static,
    R: Future + Send + 'static,
    R::Output: IntoResponse,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let operation = self.0.take().expect("an attempt runs its operation once");
        let grant = request.extensions().get::<Grant>().cloned().expect("an attempt carries its grant");
        Box::pin(async move { Ok(operation(grant).await.into_response()) })
    }
}
