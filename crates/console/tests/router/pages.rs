//! The console's pages: what they show, to whom, and that texts of others are texts.

use super::*;

/// Every page of a gate's console, with a record of this number.
pub(super) fn paths(id: &str) -> Vec<String> {
    let fixed = [
        "/",
        "/?span=day",
        "/requests",
        "/requests?state=unknown",
        "/upkeep",
        "/stale",
        "/configuration",
        "/audit",
    ];
    fixed.iter().map(ToString::to_string).chain([format!("/requests/{id}")]).collect()
}

/// A page as a browser asks for it, with these headers.
pub(super) async fn page(router: &Router, path: &str, headers: &[(&str, &str)]) -> Seen {
    let mut request = Request::get(path).header("accept", "text/html,application/xhtml+xml");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(router, request.body(Body::empty()).unwrap()).await
}

pub(super) const LOCAL: (&str, &str) = ("host", "localhost:7401");

#[tokio::test]
async fn every_page_is_there_under_a_strict_policy_and_needs_nothing_from_elsewhere() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k-1").await;
    world.settled("bob", "k-2").await;
    let router = world.open();
    for path in paths(&id_of(fence)) {
        let seen = page(&router, &path, &[LOCAL]).await;
        assert_eq!(seen.status, 200, "{path}: {}", seen.text);
        assert_eq!(seen.headers["content-type"], "text/html; charset=utf-8");
        let policy = seen.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'self'"),
            "{policy}"
        );
        assert_eq!(seen.headers["cache-control"], "no-store");
        for forbidden in ["<script>", " style=", "<style", "onclick", "http://", "https://", "javascript:"] {
            let shown = seen.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!shown.contains(forbidden), "{path} has {forbidden}");
        }
    }
    assert!(page(&router, "/", &[LOCAL]).await.text.contains("outcome is unknown"));
    assert_eq!(page(&router, "/requests/999999", &[LOCAL]).await.status, 404);
    assert_eq!(page(&router, "/requests/x", &[LOCAL]).await.status, 400);
}

#[tokio::test]
async fn the_first_page_weighs_at_most_sixty_kilobytes_with_all_that_it_loads() {
    let world = World::new();
    for at in 0..20 {
        world
            .settled(
                "somebody-with-a-long-name@example.com",
                &format!("8e03978e-40d5-43e8-bc93-6894a57f93{at:02}"),
            )
            .await;
    }
    let router = world.open();
    let mut total = 0;
    for path in ["/", "/console.css", "/console.js", "/console.svg"] {
        let seen = page(&router, path, &[LOCAL]).await;
        assert_eq!(seen.status, 200, "{path}");
        let head: usize =
            seen.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        total += head + seen.text.len();
    }
    println!("the first page: {total} bytes");
    assert!(total <= 60_000, "{total} bytes");
}

#[tokio::test]
async fn without_a_token_another_machine_gets_nothing_but_401() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k-1").await;
    let router = world.closed();
    let others = [
        "/do/gate/sweep",
        "/do/gate/resolve?id=1",
        "/live",
        "/metrics",
        "/v1/records",
        "/nowhere",
        "/requests/none",
    ];
    for path in paths(&id_of(fence)).into_iter().chain(others.map(str::to_owned)) {
        for accept in ["text/html", "*/*"] {
            let seen = page(&router, &path, &[("host", "ops.example"), ("accept", accept)]).await;
            assert_eq!(seen.status, 401, "{path}");
            assert!(!seen.text.contains("k-1") && !seen.text.contains("alice"), "{path}: {}", seen.text);
            let seen = send(
                &router,
                Request::post(&path).header("host", "ops.example").body(Body::empty()).unwrap(),
            )
            .await;
            assert_eq!(seen.status, 401, "POST {path}");
        }
    }
    let cookie = ("cookie", "semel-session-0=0123456789abcdef0123456789abcdef");
    assert_eq!(page(&router, "/", &[("host", "ops.example"), cookie]).await.status, 401);
}

#[tokio::test]
async fn a_request_that_came_through_a_proxy_is_never_a_local_one() {
    let world = World::new();
    let router = world.open();
    for name in [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "via",
        "x-forwarded-proto",
        "cf-connecting-ip",
        "x-forwarded-port",
        "x-forwarded-client-cert",
        "x-forwarded-user",
        "x-forwarded-prefix",
        "x-forwarded",
        "forwarded-for",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "x-original-host",
        "x-original-url",
        "fly-client-ip",
        "fastly-client-ip",
        "tailscale-user-login",
        "cf-ray",
        "cdn-loop",
        "x-azure-clientip",
        "x-appengine-user-ip",
        "x-amzn-trace-id",
    ] {
        for path in ["/", "/requests", "/v1/records", "/metrics"] {
            let seen = page(&router, path, &[LOCAL, (name, "203.0.113.9")]).await;
            assert_eq!(seen.status, 401, "{path} with {name}");
        }
    }
    // What a proxy speaks that adds nothing: no browser and no client of these days does.
    let old = async |router: &Router, headers: &[(&str, &str)]| {
        let mut request = request("GET", "/v1/records").version(http::Version::HTTP_10);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        send(router, request.body(Body::empty()).unwrap()).await.status
    };
    assert_eq!(old(&router, &[]).await, 401, "a bare proxy");
    let token = Some(Token::new(FULL).unwrap());
    let router = world.on(Access::on("127.0.0.1:7401".parse().unwrap(), token, None).unwrap());
    let bearer = format!("Bearer {FULL}");
    assert_eq!(old(&router, &[("authorization", &bearer)]).await, 200, "with a token it is welcome");
    let seen =
        page(&router, "/", &[LOCAL, ("x-forwarded-for", "203.0.113.9"), ("authorization", &bearer)]).await;
    assert_eq!(seen.status, 200, "with a token it is welcome");
}

#[tokio::test]
async fn a_proxy_of_ones_own_names_who_asks() {
    let access = || Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let access = access()
        .trusting("X-Operator", vec!["carol".to_owned()])
        .unwrap()
        .called(vec!["ops.example".to_owned()]);
    let world = World::new();
    let router = world.on(access);
    let through = ("x-forwarded-for", "203.0.113.9");
    let ask = async |name: &str, path: &str| {
        page(&router, path, &[("host", "ops.example"), through, ("x-operator", name)]).await
    };
    assert!(ask("carol", "/requests").await.text.contains("/do/gate/sweep"), "an operator");
    let seen = ask("dave", "/requests").await;
    assert!(seen.status == 200 && !seen.text.contains("/do/"), "a reader: {}", seen.text);
    assert_eq!(ask("dave", "/do/gate/sweep").await.status, 403);
    assert_eq!(page(&router, "/requests", &[("host", "ops.example"), through]).await.status, 401, "nobody");
    for path in ["/", "/requests", "/v1/records"] {
        let seen = page(&router, path, &[LOCAL]).await;
        assert_eq!(seen.status, 401, "{path}: whoever is not named has no more rights than a guest");
    }
    let swept = post(&router, "/v1/sweep", json!({})).await;
    assert_eq!(swept.refusal(), (401, "token-needed".to_owned()));
    let odd = send(
        &router,
        request("GET", "/v1/records").header("x-operator", "jürgen").body(Body::empty()).unwrap(),
    );
    assert_eq!(odd.await.status, 400, "a name that is not ASCII is nobody's");
    assert_eq!(
        page(&router, "/requests", &[("host", "rebound.example"), ("x-operator", "carol")]).await.status,
        421
    );
    let public = Access::on("0.0.0.0:1".parse().unwrap(), Some(Token::new(FULL).unwrap()), None).unwrap();
    assert!(public.trusting("X-Operator", Vec::new()).is_err(), "others could send the header");
}

#[tokio::test]
async fn texts_of_others_are_texts_everywhere() {
    let world = World::new();
    let markup = "<img src=x onerror=alert(1)>\"'&amp;";
    let bidi = "a\u{202e}gpj.exe\u{2066}b\u{200b}c";
    let long = "W".repeat(255);
    let mut fences = Vec::new();
    for (at, hostile) in [markup, bidi, &long, "</title><script>1</script>"].iter().enumerate() {
        let key =
            if hostile.is_ascii() && hostile.len() <= 255 { (*hostile).to_owned() } else { format!("k{at}") };
        fences.push(world.unknown(hostile, &key).await.1);
    }
    let router = world.open();
    let note = json!({"reason": format!("{markup}{bidi}"), "principal": markup});
    assert_eq!(post(&router, "/v1/sweep", json!({"reason": note["reason"]})).await.status, 200);
    let numbers: Vec<String> = fences.iter().flat_map(|fence| paths(&id_of(*fence))).collect();
    let acted = fences.iter().map(|fence| format!("/do/gate/resolve?id={}", fence.number));
    let named = "/do/gate/forget?principal=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%E2%80%AE".to_owned();
    let filtered =
        "/requests?key=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&principal=%22%3E%3Cscript%3E".to_owned();
    for path in numbers.into_iter().chain(acted).chain([named, filtered]) {
        let seen = page(&router, &path, &[LOCAL]).await;
        assert_eq!(seen.status, 200, "{path}: {}", seen.text);
        for forbidden in ["<img", "<script>", "</script><", "\u{202e}", "\u{2066}", "\u{200b}"] {
            let shown = seen.text.replace("<script src=\"/console.js\" defer></script>", "");
            // What a person typed into a filter stands in its field again, as an attribute.
            let shown = if path.contains("%E2%80%AE") { shown.replace('\u{202e}', "") } else { shown };
            assert!(!shown.contains(forbidden), "{path} has {forbidden:?}");
        }
    }
    let listed = page(&router, "/requests", &[LOCAL]).await.text;
    assert!(listed.contains("&lt;img src=x") && listed.contains("\\u{202e}"), "{listed}");
}

#[tokio::test]
async fn a_kept_answer_is_shown_to_whoever_has_the_full_token_and_to_nobody_else() {
    let world = World::new();
    let (_, fence) = world.settled("alice", "k").await;
    let path = format!("/requests/{}", id_of(fence));
    let (full, read) = (format!("Bearer {FULL}"), format!("Bearer {READ}"));
    let closed = world.closed();
    for (token, is_shown) in [(&full, true), (&read, false)] {
        let seen = page(&closed, &path, &[LOCAL, ("authorization", token)]).await;
        assert_eq!((seen.status, seen.text.contains("secret")), (200, is_shown), "{}", seen.text);
    }
    let seen = page(&world.open(), &path, &[LOCAL]).await;
    assert_eq!((seen.status, seen.text.contains("secret")), (200, false), "no token: {}", seen.text);
}

#[tokio::test]
async fn a_list_is_paged_by_cursor_and_its_filters_stand_in_its_address() {
    let world = World::new();
    for at in 0..120 {
        world.settled(if at % 2 == 0 { "alice" } else { "bob" }, &format!("k-{at}")).await;
    }
    let router = world.open();
    let mut path = "/requests?principal=alice".to_owned();
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let text = page(&router, &path, &[LOCAL]).await.text;
        pages += 1;
        assert!(text.contains("value=\"alice\""), "the filter is shown");
        seen.extend(
            text.split("href=\"/requests/").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
        );
        let Some(next) = text.split("rel=\"next\" href=\"").nth(1) else { break };
        path = next.split('"').next().unwrap().replace("&amp;", "&");
        assert!(path.contains("principal=alice"), "{path}");
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((count, seen.len(), pages), (60, 60, 2), "each once");
    let found = page(&router, "/requests?key=k-7", &[LOCAL]).await.text;
    assert!(found.contains("k-7<") && !found.contains("k-8<"), "{found}");
    let found = page(&router, "/requests?request_id=request-of-k-8", &[LOCAL]).await.text;
    assert!(found.contains("k-8<") && !found.contains("k-7<"), "{found}");
    assert_eq!(
        page(&router, "/requests?newer_than=sometimes", &[LOCAL]).await.status,
        200,
        "and says what is expected"
    );
}

#[tokio::test]
async fn what_is_not_indexed_is_searched_up_to_a_bound_and_the_page_says_so() {
    let world = World::new();
    for at in 0..1500 {
        world.settled("alice", &format!("k-{at}")).await;
    }
    let router = world.open();
    let far = get(&router, "/v1/records?order=newest&request_id=request-of-k-3&within=1000").await.json();
    assert_eq!((far["looked"].as_u64(), far["complete"].as_bool()), (Some(1000), Some(false)), "{far}");
    assert_eq!(far["records"].as_array().map(Vec::len), Some(0));
    let near = get(&router, "/v1/records?order=newest&request_id=request-of-k-3&within=100000").await.json();
    assert_eq!((near["records"].as_array().map(Vec::len), near["complete"].as_bool()), (Some(1), Some(true)));
    let by_key = get(&router, "/v1/records?order=newest&key=k-3&within=1").await.json();
    assert_eq!(by_key["records"].as_array().map(Vec::len), Some(1), "a key is looked up: {by_key}");
}

#[tokio::test(start_paused = true)]
async fn lists_give_way_to_the_work_and_lookups_do_not_wait() {
    let world = World::new();
    world.settled("alice", "a").await;
    let router = world.open();
    // With this clock time passes only where somebody waits.
    let waited = async |path: &str| {
        let since = tokio::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(get(&router, path).await.status, 200, "{path}");
        }
        since.elapsed()
    };
    for lookup in ["/v1/records?key=a", "/requests?key=a", "/v1/clock", "/console.css"] {
        assert_eq!(waited(lookup).await, Duration::ZERO, "{lookup}");
    }
    for list in ["/", "/v1/records?order=newest", "/requests", "/requests?state=settled"] {
        assert!(waited(list).await > Duration::ZERO, "{list}");
    }
}
