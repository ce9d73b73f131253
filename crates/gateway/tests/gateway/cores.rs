//! A gateway on several cores: connections are spread, what they share stays one, and the end is in as good an order.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use semel_contract::record::State;
use semel_store::{ClaimStore, Filter};

use crate::upstream::{Reply, Upstream};
use crate::world::{Client, Wish, World, keyed, post};

async fn on_cores(count: usize, upstream: &Upstream) -> World {
    Wish { cores: NonZeroUsize::new(count), ..Wish::behind(&upstream.url()) }.start().await
}

async fn clients(world: &World, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(world.client().await);
    }
    clients
}

#[tokio::test]
async fn each_core_asks_the_service_on_connections_of_its_own() {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "done")).await;
    let world = on_cores(3, &upstream).await;
    let mut clients = clients(&world, 6).await;
    for _ in 0..4 {
        for client in &mut clients {
            assert_eq!(client.ask(post("/orders", "", "{}")).await.status, 200);
        }
    }
    let used: BTreeSet<usize> = upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(used.len(), 3, "one for each core, since each sent one request at a time");
}

#[tokio::test]
async fn one_key_on_all_cores_at_once_runs_once() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(50), 201, "", "one")).await;
    let world = on_cores(4, &upstream).await;
    for round in 0..5 {
        let asked: Vec<_> = clients(&world, 32)
            .await
            .into_iter()
            .map(|mut client| {
                tokio::spawn(async move { client.ask(keyed("/orders", &format!("k{round}"), "{}")).await })
            })
            .collect();
        for answer in asked {
            let answer = answer.await.unwrap();
            assert_eq!((answer.status, answer.body.as_str()), (201, "one"));
        }
        assert_eq!(upstream.count(), round + 1);
    }
}

#[tokio::test]
async fn what_was_asked_on_any_core_is_answered_at_the_end_and_nobody_else_is_let_in() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(300), 201, "", "done")).await;
    let world = on_cores(3, &upstream).await;
    let asked: Vec<_> = clients(&world, 30)
        .await
        .into_iter()
        .enumerate()
        .map(|(number, mut client)| {
            tokio::spawn(async move { client.ask(keyed("/orders", &format!("k{number}"), "{}")).await })
        })
        .collect();
    while upstream.count() < 30 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let idle = clients(&world, 3).await;
    assert_eq!(world.gateway.shut_down(Duration::from_secs(10)).await, 0);
    drop(idle);
    for answer in asked {
        assert_eq!(answer.await.unwrap().status, 201);
    }
    assert_eq!(world.gateway.connections(), 0);
    assert!(tokio::net::TcpStream::connect(world.address).await.is_err(), "nobody is let in any more");
}

#[tokio::test]
async fn work_whose_client_is_gone_ends_on_its_core() {
    let upstream = Upstream::start(|_, before| match before {
        0..6 => Reply::after(Duration::from_millis(200), 201, "", "done"),
        _ => Reply::Silence,
    })
    .await;
    let world = on_cores(3, &upstream).await;
    for count in [6, 7] {
        let mut clients = clients(&world, if count == 6 { 6 } else { 1 }).await;
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(keyed("/orders", &format!("{count}-{number}"), "{}")).await;
        }
        while upstream.count() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(world.gateway.shut_down(Duration::from_millis(700)).await, 1, "the one without an answer");
    let filter = Filter { limit: 10, ..Filter::default() };
    let mut states: Vec<State> =
        world.store.list(&filter).await.unwrap().iter().map(|entry| entry.record.state).collect();
    states.sort_by_key(|state| state.name());
    assert_eq!(states, [vec![State::Settled; 6], vec![State::Unknown]].concat());
}
