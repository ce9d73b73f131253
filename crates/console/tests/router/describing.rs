//! The OpenAPI document and the routes agree.

use super::*;

/// The routes as the code says them: path and methods.
fn routes() -> Vec<(String, String)> {
    let source = include_str!("../../src/routes.rs");
    // The console itself is served beside the API.
    let mut found = vec![("/".to_owned(), "get".to_owned())];
    for line in source.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
        let (path, rest) = line.split_once('"').unwrap();
        let method = rest.trim_start_matches(", ").split('(').next().unwrap();
        found.push((path.to_owned(), method.to_owned()));
    }
    found.sort();
    found
}

#[tokio::test]
async fn every_route_is_described_and_everything_described_answers() {
    let world = World::new();
    world.unknown("alice", "k").await;
    let router = world.open();
    let document = get(&router, "/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut described = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.push((path.clone(), method.clone()));
            let target = path.replace("{id}", "1").replace("search", "search?q=k");
            let seen = match method.as_str() {
                "get" => get(&router, &target).await,
                _ => post(&router, &target, empty()).await,
            };
            assert!(
                ![404, 405, 500].contains(&seen.status),
                "{method} {path}: {} {}",
                seen.status,
                seen.text
            );
            let status = seen.status.to_string();
            let known = operation["responses"].as_object().unwrap();
            assert!(known.contains_key(&status), "{method} {path} answered {status}, which is not described");
        }
    }
    described.sort();
    assert_eq!(described, routes());
    assert_eq!(described.len(), 19);
}

#[tokio::test]
async fn operations_have_names_of_their_own_and_required_members_are_required() {
    let document = semel_console::document();
    let mut names = Vec::new();
    for methods in document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            names.push(operation["operationId"].as_str().unwrap().to_owned());
        }
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    let world = World::new();
    let router = world.open();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(required) = schema["required"].as_array().filter(|required| !required.is_empty()) else {
            continue;
        };
        let seen = post(&router, &path.replace("{id}", "1"), empty()).await;
        assert_eq!(seen.status, 400, "{path} needs {required:?}");
    }
    let other = post(&router, "/v1/records", empty()).await;
    assert_eq!(other.refusal(), (405, "no-such-method".to_owned()));
    assert_eq!(get(&router, "/v1").await.refusal(), (404, "no-such-path".to_owned()));
}
