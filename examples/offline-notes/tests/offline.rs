//! The example, run: notes are queued while the server is away, and each arrives once when it comes back.

use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::post;
use semel_contract::identity::Identity;
use semel_gate::{GateLayer, Route};
use semel_store::memory::MemoryStore;

fn notes(file: &str, server: &str, rest: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_semel-example-offline-notes"))
        .args([file, server])
        .args(rest)
        .output()
        .expect("the example runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_wait_while_the_server_is_away_and_arrive_once_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notes.db").display().to_string();
    // An address that nobody listens on yet.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = reserved.local_addr().expect("an address");
    drop(reserved);
    let server = format!("http://{address}");
    for text in ["milk", "bread", "tea"] {
        assert!(notes(&file, &server, &["add", text]).starts_with("kept as "));
    }
    assert_eq!(notes(&file, &server, &["sync", "1"]), "3 notes wait");

    let taken: Arc<Mutex<Vec<String>>> = Arc::default();
    let of_server = Arc::clone(&taken);
    let take = move |text: String| async move {
        of_server.lock().expect("no panic").push(text);
        "taken"
    };
    let gate = GateLayer::builder(MemoryStore::new())
        .identity("shared:notes".parse::<Identity>().expect("an identity"))
        .route(Route::new("note", "POST /notes").expect("a pattern"))
        .build()
        .expect("a gate");
    let app = Router::new().route("/notes", post(take)).layer(gate);
    let listener = tokio::net::TcpListener::bind(address).await.expect("the port is still free");
    tokio::spawn(async move { axum::serve(listener, app).await });

    assert_eq!(notes(&file, &server, &["sync", "30"]), "0 notes wait");
    assert_eq!(*taken.lock().expect("no panic"), ["milk", "bread", "tea"]);
    let list = notes(&file, &server, &["list"]);
    assert_eq!(list.matches(" done").count(), 3, "{list}");
    assert_eq!(notes(&file, &server, &["sync", "5"]), "0 notes wait");
    assert_eq!(taken.lock().expect("no panic").len(), 3, "nothing is sent twice");
}
