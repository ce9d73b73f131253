//! The example on PostgreSQL, in databases of its own on the tests' server.

mod service;

use tokio_postgres::NoTls;

const SERVER: &str = "SEMEL_TEST_POSTGRES";

fn on_postgres(name: &str, claim: fn(&str)) {
    let server = std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
    let name = format!("orders_{name}_{}", std::process::id());
    let create = async {
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
    };
    tokio::runtime::Runtime::new().expect("a runtime").block_on(create);
    claim(&server.replace("/postgres", &format!("/{name}")));
}

#[test]
fn the_same_key_twice_is_one_order_and_one_answer() {
    on_postgres("twice", service::the_same_key_twice_is_one_order_and_one_answer);
}

#[test]
fn fifty_in_parallel_with_one_key_are_one_order() {
    on_postgres("fifty", service::fifty_in_parallel_with_one_key_are_one_order);
}

#[test]
fn a_killed_service_keeps_what_it_acknowledged_and_nothing_twice() {
    on_postgres("killed", service::a_killed_service_keeps_what_it_acknowledged_and_nothing_twice);
}
