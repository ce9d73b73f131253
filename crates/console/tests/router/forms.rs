//! What the console does: asked, confirmed, once, by those who may.

use semel_console::{ACTIONS, Right};

use super::pages::{LOCAL, page, paths};
use super::*;

/// The hidden number of the form on a page.
fn number(text: &str) -> String {
    let field = text.split("name=\"number\" value=\"").nth(1).unwrap_or_else(|| panic!("no form: {text}"));
    field.split('"').next().unwrap().to_owned()
}

async fn submit(router: &Router, path: &str, form: &str, headers: &[(&str, &str)]) -> Seen {
    let mut request = Request::post(path).header("content-type", "application/x-www-form-urlencoded");
    for (name, value) in headers.iter().chain(&[("accept", "text/html")]) {
        request = request.header(*name, *value);
    }
    send(router, request.body(Body::from(form.to_owned())).unwrap()).await
}

/// A console with tokens on loopback, and the cookie of whoever signs in with this one.
async fn signed_in(world: &World, token: &str) -> (Router, String) {
    let of = |text| Some(Token::new(text).unwrap());
    let router = world.on(Access::on("127.0.0.1:7401".parse().unwrap(), of(FULL), of(READ)).unwrap());
    let seen = submit(&router, "/sign-in", &format!("token={token}&back=%2Frequests"), &[LOCAL]).await;
    assert_eq!((seen.status, seen.headers["location"].to_str().unwrap()), (303, "/requests"));
    let cookie = seen.headers["set-cookie"].to_str().unwrap().to_owned();
    for needed in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=28800"] {
        assert!(cookie.contains(needed), "{cookie}");
    }
    assert!(!cookie.contains(token), "the cookie is not the token");
    (router, cookie.split(';').next().unwrap().to_owned())
}

#[tokio::test]
async fn signing_in_opens_the_pages_and_not_the_api_and_signing_out_closes_them() {
    let world = World::new();
    let (router, cookie) = signed_in(&world, FULL).await;
    let with = [LOCAL, ("cookie", cookie.as_str())];
    let seen = page(&router, "/", &with).await;
    assert!(seen.status == 200 && seen.text.contains("signed in as operator"), "{}", seen.text);
    assert_eq!(page(&router, "/v1/records", &with).await.status, 401, "programs have tokens");
    let wrong = submit(&router, "/sign-in", "token=not-a-token-of-anybody", &[LOCAL]).await;
    assert!(wrong.status == 401 && !wrong.headers.contains_key("set-cookie"));
    let foreign = [LOCAL, ("origin", "https://evil.example")];
    assert_eq!(submit(&router, "/sign-in", &format!("token={FULL}"), &foreign).await.status, 403);
    assert_eq!(submit(&router, "/sign-out", "number=1", &with).await.status, 403, "by the button only");
    let form = format!("number={}", number(&seen.text));
    assert_eq!(submit(&router, "/sign-out", &form, &with).await.status, 303);
    assert_eq!(page(&router, "/", &with).await.status, 401);
}

#[tokio::test]
async fn a_token_that_is_replaced_ends_its_sign_ins() {
    let world = World::new();
    let address = "127.0.0.1:7401".parse().unwrap();
    let of = |text| Some(Token::new(text).unwrap());
    let access = Access::on(address, of(FULL), None).unwrap();
    let router = world.on(access.clone());
    let seen = submit(&router, "/sign-in", &format!("token={FULL}"), &[LOCAL]).await;
    let cookie = seen.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(page(&router, "/", &[LOCAL, ("cookie", &cookie)]).await.status, 200);
    // Of the two roles the sign-in has the one that its token has now.
    access.follow(&Access::on(address, of("another-full-token"), of(FULL)).unwrap());
    assert_eq!(page(&router, "/", &[LOCAL, ("cookie", &cookie)]).await.status, 200);
    assert_eq!(page(&router, "/do/gate/sweep", &[LOCAL, ("cookie", &cookie)]).await.status, 403);
    access.follow(&Access::on(address, of("another-full-token"), None).unwrap());
    assert_eq!(page(&router, "/", &[LOCAL, ("cookie", &cookie)]).await.status, 401);
}

#[tokio::test]
async fn the_read_only_role_is_offered_nothing_and_may_do_nothing() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k").await;
    let (router, cookie) = signed_in(&world, READ).await;
    let with = [LOCAL, ("cookie", cookie.as_str())];
    for path in paths(&id_of(fence)) {
        let seen = page(&router, &path, &with).await;
        assert_eq!(seen.status, 200, "{path}");
        assert!(!seen.text.contains("/do/"), "{path} offers something");
    }
    for action in ACTIONS.iter().filter(|action| action.part == "gate") {
        assert_eq!(action.role, Right::Change, "{}", action.name);
        let path = format!("/do/gate/{}?id={}", action.name, fence.number);
        assert_eq!(page(&router, &path, &with).await.status, 403, "{path}");
        assert_eq!(submit(&router, &path, "number=1", &with).await.status, 403, "{path}");
    }
    let full = world.open();
    let form = number(&page(&full, "/do/gate/sweep?grace=1s", &[LOCAL]).await.text);
    let seen = submit(&router, "/do/gate/sweep", &format!("number={form}&confirmed=yes"), &with).await;
    assert_eq!(seen.status, 403);
    assert_eq!(latest(&full).await, Value::Null, "nothing was done");
}

#[tokio::test]
async fn a_form_acts_once_however_often_it_is_sent() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k").await;
    let (router, cookie) = signed_in(&world, FULL).await;
    let with = [LOCAL, ("cookie", cookie.as_str())];
    let path = format!("/do/gate/resolve?id={}", fence.number);
    let preview = page(&router, &path, &with).await.text;
    for shown in ["alice", "It was", "Why; it stands in the audit trail", "request-of-k"] {
        assert!(preview.contains(shown), "{shown}: {preview}");
    }
    let form = format!("number={}&id={}&as=applied&reason=in+the+books", number(&preview), fence.number);
    let (one, two) = tokio::join!(
        submit(&router, "/do/gate/resolve", &form, &with),
        submit(&router, "/do/gate/resolve", &form, &with)
    );
    let again = submit(&router, "/do/gate/resolve", &form, &with).await;
    assert_eq!([one.status, two.status, again.status], [303; 3], "{}", one.text);
    assert_eq!(one.headers["location"], again.headers["location"]);
    let after = page(&router, one.headers["location"].to_str().unwrap(), &with).await.text;
    assert!(after.contains("Done:") && after.contains("unkept"), "{after}");
    let open = world.open();
    let rows = get(&open, "/v1/audit").await.json();
    let resolved = rows["audit"].as_array().unwrap();
    assert_eq!(resolved.len(), 1, "{rows}");
    assert_eq!(
        (&resolved[0]["actor"], &resolved[0]["reason"]),
        (&json!("full token"), &json!("in the books"))
    );
}

#[tokio::test]
async fn a_form_that_another_origin_sends_is_refused() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k").await;
    let (router, cookie) = signed_in(&world, FULL).await;
    let with = [LOCAL, ("cookie", cookie.as_str())];
    let preview = page(&router, &format!("/do/gate/seal?id={}", fence.number), &with).await.text;
    let form = format!("number={}&id={}&reason=x", number(&preview), fence.number);
    for origin in ["https://evil.example", "http://localhost:3000", "null"] {
        let seen =
            submit(&router, "/do/gate/seal", &form, &[LOCAL, ("cookie", &cookie), ("origin", origin)]).await;
        assert_eq!(seen.status, 403, "{origin}");
    }
    // Without the number of a form that this person was shown.
    for bare in ["", "number=&", "number=0000000000000001aa.bb&"] {
        let seen =
            submit(&router, "/do/gate/seal", &format!("{bare}id={}&reason=x", fence.number), &with).await;
        assert_eq!(seen.status, 403, "{bare}");
    }
    // Another person's form, and the form of another action.
    let (_, other) = signed_in(&world, FULL).await;
    assert_eq!(
        submit(&router, "/do/gate/seal", &form, &[LOCAL, ("cookie", &other)]).await.status,
        401,
        "another process's"
    );
    let sweep = submit(&router, "/do/gate/sweep", &form, &with).await;
    assert_eq!(sweep.status, 403);
    assert_eq!(latest(&world.open()).await, Value::Null, "nothing was done");
}

#[tokio::test]
async fn on_loopback_without_a_token_forms_ask_to_confirm_and_nobody_sees_bodies() {
    let world = World::new();
    let (_, fence) = world.settled("alice", "k").await;
    let router = world.open();
    let shown = page(&router, &format!("/requests/{}", fence.number), &[LOCAL]).await.text;
    assert!(shown.contains("Hidden: bodies are shown") && !shown.contains("secret"), "{shown}");
    let api = get(&router, &format!("/v1/records/{}?body=true", fence.number)).await;
    assert_eq!(api.refusal().0, 403, "nor by the API");
    let preview = page(&router, "/do/gate/sweep?grace=1s", &[LOCAL]).await.text;
    assert!(preview.contains("would remove") && preview.contains("name=\"confirmed\""), "{preview}");
    let form = format!("number={}&grace=1s", number(&preview));
    assert_eq!(submit(&router, "/do/gate/sweep", &form, &[LOCAL]).await.status, 400, "it was not confirmed");
    let seen =
        submit(&router, "/do/gate/sweep", &format!("{form}&confirmed=yes&reason=disk"), &[LOCAL]).await;
    assert_eq!(seen.status, 303, "{}", seen.text);
    assert_eq!(latest(&router).await["reason"], "disk");
}

#[tokio::test]
async fn every_action_can_be_done_by_its_form() {
    let world = World::new();
    let (_, unknown) = world.unknown("alice", "k-1").await;
    let (id, freed) = world.claim("alice", "k-2").await;
    world.settle(&id, freed, Settlement::Release).await;
    world.settled("bob", "k-3").await;
    let (router, cookie) = signed_in(&world, FULL).await;
    let with = [LOCAL, ("cookie", cookie.as_str())];
    world.clock.advance(Duration::from_secs(600));
    let done = async |name: &str, query: &str, fields: &str| {
        let preview = page(&router, &format!("/do/gate/{name}?{query}"), &with).await;
        assert_eq!(preview.status, 200, "{name}: {}", preview.text);
        let form = format!("number={}&{query}&{fields}", number(&preview.text));
        let seen = submit(&router, &format!("/do/gate/{name}"), &form, &with).await;
        assert_eq!(seen.status, 303, "{name}: {}", seen.text);
        page(&router, seen.headers["location"].to_str().unwrap(), &with).await.text
    };
    let mut tried = Vec::new();
    for (name, query, fields) in [
        ("resolve", format!("id={}", unknown.number), "as=not-applied&reason=not+in+the+books"),
        ("sweep", "grace=1h".to_owned(), ""),
        ("forget", "principal=bob".to_owned(), "reason=asked+for"),
        ("restored", String::new(), "backup_time=1970-01-01T00:00:01Z&reason=disk"),
    ] {
        let text = done(name, &query, fields).await;
        assert!(text.contains("Done:"), "{name}: {text}");
        tried.push(name);
    }
    // What the API refuses is said, and nothing is done.
    for (name, query, fields, why) in [
        ("seal", format!("id={}", unknown.number), "reason=x", "Done"),
        ("confirm-clock", String::new(), "reason=x", "nothing to confirm"),
    ] {
        let text = done(name, &query, fields).await;
        assert!(text.contains(why), "{name}: {text}");
        tried.push(name);
    }
    for action in ACTIONS.iter().filter(|action| action.part == "gate") {
        assert!(tried.contains(&action.name), "{} was not tried", action.name);
    }
}

#[tokio::test]
async fn the_table_of_actions_and_the_api_agree() {
    let document = semel_console::document();
    let mut routes: Vec<String> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        routes.extend(
            methods.as_object().unwrap().keys().filter(|method| *method != "get").map(|_| path.clone()),
        );
    }
    let mut acts: Vec<String> =
        ACTIONS.iter().filter(|action| action.part == "gate").map(|action| action.path.to_owned()).collect();
    routes.sort();
    acts.sort();
    assert_eq!(routes, acts);
    for action in ACTIONS.iter().filter(|action| action.part == "gate") {
        let schema =
            &document["paths"][action.path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        for field in action.fields {
            assert!(schema["properties"][field.name].is_object(), "{} {}", action.name, field.name);
        }
        assert!(schema["properties"]["reason"].is_object(), "{} has no place for a reason", action.name);
    }
}
