//! Who is let in.

use super::*;

fn with(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn reading_takes_a_token_and_changing_the_full_one() {
    let router = World::new().closed();
    let ask = async |method: &str, path: &str, token: Option<&str>| {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = [("host", "ops.example")]
            .into_iter()
            .chain(authorization.as_deref().map(|value| ("authorization", value)))
            .collect();
        send(&router, with(method, path, &headers)).await
    };
    for path in [
        "/v1/records",
        "/metrics",
        "/v1/audit",
        "/v1/nowhere",
        "/openapi.json",
        "/console.js",
        "/console.svg",
    ] {
        let seen = ask("GET", path, None).await;
        assert_eq!(seen.refusal(), (401, "token-needed".to_owned()), "{path}");
        assert_eq!(seen.headers["www-authenticate"], "Bearer");
        assert_eq!(ask("GET", path, Some("another-token-of-length")).await.status, 401);
    }
    for token in [FULL, READ] {
        assert_eq!(ask("GET", "/v1/records", Some(token)).await.status, 200);
        assert_eq!(ask("GET", "/metrics", Some(token)).await.status, 200);
    }
    for path in ["/healthz", "/readyz"] {
        let seen = ask("GET", path, None).await;
        assert_eq!((seen.status, seen.text.as_str()), (200, r#"{"status":"ok"}"#), "{path}");
        assert!(ask("GET", path, Some("another-token-of-length")).await.text.len() < 20, "{path}");
    }
    assert!(ask("GET", "/readyz", Some(READ)).await.text.contains("clock_frozen"));
    let routes = semel_console::document();
    let changing = routes["paths"].as_object().unwrap().iter().filter(|(_, path)| path["post"].is_object());
    let mut tried = 0;
    for (path, _) in changing {
        let seen = ask("POST", &path.replace("{id}", "1"), Some(READ)).await;
        assert_eq!(seen.refusal(), (403, "read-only".to_owned()), "{path}");
        tried += 1;
    }
    assert_eq!(tried, 6, "every way to change something was tried");
    assert_eq!(ask("POST", "/v1/sweep", Some(FULL)).await.status, 200);
}

#[tokio::test]
async fn tokens_are_changed_while_it_runs() {
    let address = "127.0.0.1:7401".parse().unwrap();
    let token = |text| Some(Token::new(text).unwrap());
    let access = Access::on(address, token(FULL), None).unwrap();
    let router = World::new().on(access.clone());
    let ask = async |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("host", "localhost"), ("authorization", authorization.as_str())];
        send(&router, with("GET", "/v1/records", &headers)).await.status
    };
    assert_eq!((ask(FULL).await, ask("another-full-token").await), (200, 401));
    access.follow(&Access::on(address, token("another-full-token"), None).unwrap());
    assert_eq!((ask(FULL).await, ask("another-full-token").await), (401, 200));
    let (bare, public) = (
        Access::on(address, None, None).unwrap(),
        Access::on("0.0.0.0:1".parse().unwrap(), token(FULL), None).unwrap(),
    );
    assert!(access.may_follow(&bare).is_ok() && public.may_follow(&bare).is_err());
}

#[tokio::test]
async fn bodies_take_the_full_token() {
    let world = World::new();
    let (_, fence) = world.settled("alice", "k").await;
    let router = world.closed();
    let path = format!("/v1/records/{}?body=true", fence.number);
    let ask = async |token: &str| {
        let authorization = format!("Bearer {token}");
        send(&router, with("GET", &path, &[("host", "x"), ("authorization", &authorization)])).await
    };
    assert_eq!(ask(READ).await.status, 403);
    assert_eq!(ask(FULL).await.json()["answer"]["body_base64"], "c2VjcmV0");
    let plain = get(&world.open(), &format!("/v1/records/{}", fence.number)).await;
    assert!(!plain.text.contains("c2VjcmV0") && !plain.text.contains("secret"), "{}", plain.text);
}

#[tokio::test]
async fn a_page_of_somebody_else_reaches_nothing() {
    let router = World::new().open();
    let refused = async |headers: &[(&str, &str)]| {
        let mut codes = Vec::new();
        for (method, path) in [("GET", "/v1/records"), ("POST", "/v1/sweep"), ("GET", "/metrics")] {
            codes.push(send(&router, with(method, path, headers)).await.refusal());
        }
        codes.dedup();
        assert_eq!(codes.len(), 1, "{codes:?}");
        codes.remove(0)
    };
    let host = (421, "host-not-allowed".to_owned());
    assert_eq!(refused(&[("host", "rebound.example:7401")]).await, host);
    assert_eq!(refused(&[]).await, host);
    assert_eq!(refused(&[("host", "localhost"), ("host", "rebound.example")]).await, host);
    let origin = (403, "origin-not-allowed".to_owned());
    assert_eq!(refused(&[("host", "localhost:7401"), ("origin", "https://evil.example")]).await, origin);
    assert_eq!(refused(&[("host", "localhost:7401"), ("origin", "http://localhost:3000")]).await, origin);
    assert_eq!(refused(&[("host", "localhost:7401"), ("origin", "null")]).await, origin);
    let own = [("host", "localhost:7401"), ("origin", "http://localhost:7401")];
    assert_eq!(send(&router, with("GET", "/v1/records", &own)).await.status, 200);
    assert_eq!(send(&router, with("GET", "/readyz", &[("host", "probe.example")])).await.status, 200);
    // A form of a page sends its own types without asking first.
    let form = request("POST", "/v1/sweep").header("content-type", "text/plain").body(Body::from("{}"));
    assert_eq!(send(&router, form.unwrap()).await.refusal(), (415, "not-json".to_owned()));
}

#[tokio::test]
async fn the_trail_says_by_which_door_somebody_came() {
    let world = World::new();
    post(&world.open(), "/v1/sweep", empty()).await;
    assert_eq!(latest(&world.open()).await["actor"], "carol (loopback)");
    let authorization = format!("Bearer {FULL}");
    let headers = [("host", "x"), ("authorization", authorization.as_str())];
    send(&world.closed(), with("POST", "/v1/sweep", &headers)).await;
    assert_eq!(latest(&world.open()).await["actor"], "full token");
    let long = "x".repeat(200);
    let nobody = with("POST", "/v1/sweep", &[("host", "localhost"), ("semel-actor", &long)]);
    assert_eq!(send(&world.open(), nobody).await.refusal(), (400, "bad-actor".to_owned()));
}

#[tokio::test]
async fn a_target_that_names_another_server_is_refused() {
    let router = World::new().open();
    for path in ["/v1/records", "/metrics", "/healthz", "/", "/requests"] {
        let seen =
            send(&router, with("GET", &format!("http://elsewhere.example{path}"), &[("host", "localhost")]))
                .await;
        assert_eq!(seen.refusal(), (421, "host-not-allowed".to_owned()), "{path}");
        let own =
            send(&router, with("GET", &format!("http://localhost{path}"), &[("host", "localhost")])).await;
        assert_eq!(own.status, 200, "{path}");
    }
    let without = send(&router, with("GET", "http://elsewhere.example/v1/records", &[])).await;
    assert_eq!(without.status, 421);
}

#[tokio::test]
async fn a_program_that_asks_for_text_reads_what_is_there() {
    let router = World::new().open();
    let seen = send(&router, with("GET", "/", &[("host", "localhost"), ("accept", "text/plain")])).await;
    assert_eq!(seen.status, 200);
    let text = &seen.text;
    for path in semel_console::document()["paths"].as_object().unwrap().keys() {
        assert!(text.contains(&format!(" {path} ")), "{path} in {text}");
    }
}

/// Whoever is not let in can sign in, and learns nothing else of what is here.
#[tokio::test]
async fn a_stranger_gets_the_page_to_sign_in_and_its_style() {
    let router = World::new().closed();
    let ask =
        async |path: &str| send(&router, with("GET", path, &[("host", "x"), ("accept", "text/html")])).await;
    for path in ["/", "/requests", "/configuration", "/openapi.json", "/do/gate/sweep", "/favicon.ico"] {
        let seen = ask(path).await;
        assert_eq!(seen.status, 401, "{path}");
        assert!(
            seen.text.contains("name=\"token\"") && !seen.text.contains("<script"),
            "{path}: {}",
            seen.text
        );
        assert!(!seen.text.contains("<nav"), "{path} shows the menu");
        for linked in seen.text.split("href=\"/").skip(1).filter_map(|rest| rest.split('"').next()) {
            let expected = if linked.ends_with(".css") { 200 } else { 401 };
            assert_eq!(ask(&format!("/{linked}")).await.status, expected, "{linked} of {path}");
        }
    }
}

/// What a part writes into its trail is who was let in, and never what somebody says of themselves.
#[tokio::test]
async fn a_part_is_told_who_acts_by_the_guard_alone() {
    use axum::routing::post;
    use semel_console::Surface;
    let echo = post(|headers: HeaderMap| async move {
        headers.get("semel-actor").map(|name| name.to_str().unwrap_or("?").to_owned()).unwrap_or_default()
    });
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let access = access.trusting("x-user", vec!["alice".to_owned()]).unwrap();
    let router = Surface::new(access).router(Router::new().route("/v1/act", echo));
    let said = async |user: &str, claimed: &str| {
        let headers = [("host", "localhost"), ("x-user", user), ("semel-actor", claimed)];
        send(&router, with("POST", "/v1/act", &headers)).await
    };
    assert_eq!(said("alice", "bob").await.text, "alice (proxy)");
    assert_eq!(said("bob", "alice").await.status, 403, "who is no operator acts as nobody else");
}
