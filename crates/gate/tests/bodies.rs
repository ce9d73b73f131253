//! The layer around services that are not axum's: any body in, any body out.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use semel_contract::identity::Identity;
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_gate::{Body, BuildError, GateLayer, Route};
use semel_store::memory::MemoryStore;
use tower::{Layer, Service, ServiceExt, service_fn};

fn gate() -> GateLayer {
    GateLayer::builder(MemoryStore::new())
        .identity(Identity::header("X-User"))
        .route(Route::post("/echo"))
        .build()
        .expect("a safe gate")
}

fn request<B>(body: B) -> Request<B> {
    let request = Request::post("/echo").header("x-user", "alice").header("idempotency-key", "k");
    request.body(body).expect("a request")
}

async fn send<S, B>(service: &mut S, request: Request<B>) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    service.ready().await.expect("ready").call(request).await.expect("an answer")
}

#[tokio::test]
async fn a_plain_tower_service_with_bodies_of_its_own_is_protected() {
    let mut runs = 0;
    let echo = service_fn(move |request: Request<Body>| {
        runs += 1;
        async move {
            let body = request.into_body().collect().await.expect("a whole body").to_bytes();
            let said = [format!("run {runs}: ").as_bytes(), &body].concat();
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(said))))
        }
    });
    let mut service = gate().layer(echo);
    for attempt in 1..=2 {
        let asked = request(Full::new(Bytes::from_static(b"tea")));
        let answer = send(&mut service, asked).await;
        let is_replay = answer.headers().contains_key("idempotency-replayed");
        let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
        assert_eq!((is_replay, &body[..]), (attempt == 2, b"run 1: tea".as_slice()));
    }
    // A body of another type, and so another request under this key.
    let asked = request(Empty::<Bytes>::new());
    let answer = send(&mut service, asked).await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[test]
fn a_profile_that_is_given_last_does_not_undo_atomic() {
    let fenced = presets::ietf();
    assert_eq!(fenced.guarantee, Guarantee::Fenced);
    let debug = |route: Route| format!("{route:?}");
    let one = debug(Route::post("/orders").atomic().profile(fenced.clone()));
    let other = debug(Route::post("/orders").profile(fenced).atomic());
    assert_eq!(one, other);
    assert!(one.contains("guarantee: Atomic"), "{one}");
}

#[test]
fn a_path_that_cannot_be_read_is_told_when_the_gate_is_built() {
    let gate = GateLayer::builder(MemoryStore::new()).route(Route::post("orders").name("create-order"));
    let error = gate.build().expect_err("a path begins with a slash");
    assert!(matches!(&error, BuildError::Pattern { route, .. } if route == "create-order"), "{error:?}");
    assert!(error.to_string().contains("orders"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}
