//! Pages on other origins that may use the relay: answers their browsers' questions, and lets them read answers.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use semel_http::Cors;

/// The same routes, for pages on other origins too.
pub(super) fn open_to(cors: Option<&Cors>, router: Router) -> Router {
    let Some(cors) = cors.cloned() else { return router };
    router.layer(from_fn(move |request: Request, next: Next| {
        let cors = cors.clone();
        async move {
            let (parts, body) = request.into_parts();
            let allowed = cors.allowed(&parts.headers);
            let mut response = match cors.answer_preflight(&parts) {
                Some(answer) => answer,
                None => next.run(Request::from_parts(parts, body)).await,
            };
            cors.expose(allowed, response.headers_mut());
            response
        }
    }))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::post;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_page_of_a_named_origin_is_let_in_and_no_other() {
        let cors = Cors::new(&["https://app.example".to_owned()], false).unwrap();
        let router = open_to(Some(&cors), Router::new().route("/v1/items", post(|| async { "taken" })));
        for (origin, status, shown) in
            [("https://app.example", 204, Some("https://app.example")), ("https://evil.example", 403, None)]
        {
            let asked = |method: &str| {
                Request::builder()
                    .method(method)
                    .uri("/v1/items")
                    .header("origin", origin)
                    .header("access-control-request-method", "POST")
                    .body(Body::empty())
                    .unwrap()
            };
            let answer = router.clone().oneshot(asked("OPTIONS")).await.unwrap();
            assert_eq!(answer.status(), status);
            let answer = router.clone().oneshot(asked("POST")).await.unwrap();
            let header = answer.headers().get("access-control-allow-origin");
            assert_eq!((answer.status().as_u16(), header.map(|value| value.to_str().unwrap())), (200, shown));
        }
    }
}
