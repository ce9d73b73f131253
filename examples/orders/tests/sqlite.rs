//! The example on SQLite, in a file that goes away with the test.

mod service;

fn on_sqlite(claim: fn(&str)) {
    let folder = tempfile::tempdir().expect("a folder");
    claim(&format!("sqlite:{}", folder.path().join("orders.db").display()));
}

#[test]
fn the_same_key_twice_is_one_order_and_one_answer() {
    on_sqlite(service::the_same_key_twice_is_one_order_and_one_answer);
}

#[test]
fn fifty_in_parallel_with_one_key_are_one_order() {
    on_sqlite(service::fifty_in_parallel_with_one_key_are_one_order);
}

#[test]
fn a_killed_service_keeps_what_it_acknowledged_and_nothing_twice() {
    on_sqlite(service::a_killed_service_keeps_what_it_acknowledged_and_nothing_twice);
}
