//! Accepting: one append per id, whole or not at all, whatever races with it and whatever fails.

use std::sync::atomic::Ordering;

use semel_broker::{LineName, Published, Refusal, SealAnswer, Settings, WebhookBody};

use super::kit::{TABLES, World, accepted, caller, draft, draft_of, rate};

pub(crate) async fn fifty_parallel_first_sends_are_one_message(world: World) {
    let other = world.another().await;
    let mut sends = tokio::task::JoinSet::new();
    for at in 0..50 {
        let broker = if at % 2 == 0 { world.broker.clone() } else { other.clone() };
        sends.spawn(async move { broker.publish(&caller("alice"), draft("alice", "one", "x")).await });
    }
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for published in sends.join_all().await {
        match published {
            Published::Accepted(receipt) => first.push(receipt),
            Published::Duplicate(receipt) => again.push(receipt),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((first.len(), again.len()), (1, 49));
    assert!(again.iter().all(|receipt| *receipt == first[0]), "every repetition is told the same");
    assert_eq!(world.rows("topic_message").await, 1);
    assert_eq!(world.rows("message_history").await, 1);
    world.assert_no_orphans().await;
}

pub(crate) async fn of_two_bodies_under_one_id_one_wins(world: World) {
    let other = world.another().await;
    let mut sends = tokio::task::JoinSet::new();
    for at in 0..50 {
        let broker = if at % 2 == 0 { world.broker.clone() } else { other.clone() };
        let body = if at % 4 < 2 { "x" } else { "y" };
        sends.spawn(
            async move { (body, broker.publish(&caller("alice"), draft("alice", "one", body)).await) },
        );
    }
    let all = sends.join_all().await;
    let won: Vec<&str> = all
        .iter()
        .filter(|(_, published)| matches!(published, Published::Accepted(_)))
        .map(|(body, _)| *body)
        .collect();
    assert_eq!(won.len(), 1);
    for (body, published) in &all {
        match published {
            Published::Accepted(_) | Published::Duplicate(_) => assert_eq!(*body, won[0]),
            Published::Reused { broker_message_id, fingerprint } => {
                assert_ne!(*body, won[0]);
                assert!(broker_message_id.is_some(), "it is the sender's own");
                assert_eq!(fingerprint.len(), 16);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.rows("topic_message").await, 1);
}

pub(crate) async fn another_members_use_of_an_id_shows_nothing(world: World) {
    accepted(world.broker.publish(&caller("alice"), draft("alice", "one", "x")).await);
    match world.broker.publish(&caller("bob"), draft("bob", "one", "x")).await {
        Published::Reused { broker_message_id, .. } => assert_eq!(broker_message_id, None),
        other => panic!("{other:?}"),
    }
    assert!(matches!(world.broker.seal(&caller("bob"), "one").await, Ok(SealAnswer::Others)));
    assert!(world.broker.receipt(&caller("bob"), "one").await.is_err());
}

pub(crate) async fn of_a_publish_and_a_seal_exactly_one_wins(world: World, rounds: usize) {
    let other = world.another().await;
    let (mut published_first, mut sealed_first) = (0, 0);
    for at in 0..rounds {
        let id = format!("race-{at}");
        let alice = caller("alice");
        let publish = world.broker.publish(&alice, draft("alice", &id, "x"));
        let seal = other.seal(&alice, &id);
        let (published, sealed) = match at % 2 {
            0 => tokio::join!(publish, seal),
            _ => {
                let (sealed, published) = tokio::join!(seal, publish);
                (published, sealed)
            }
        };
        match (published, sealed.unwrap()) {
            (Published::Accepted(one), SealAnswer::Committed(other)) => {
                assert_eq!(one, other);
                published_first += 1;
            }
            (Published::Sealed, SealAnswer::Sealed) => sealed_first += 1,
            both => panic!("both won, or none: {both:?}"),
        }
    }
    assert_eq!(published_first + sealed_first, rounds);
    assert!(
        published_first > 0 && sealed_first > 0,
        "{published_first} and {sealed_first}: there was no race"
    );
    let sql = "client_message_dedupe WHERE kind = 'committed'";
    assert_eq!(world.rows(sql).await, world.rows("message_history").await);
    world.assert_no_orphans().await;
}

pub(crate) async fn a_saturated_budget_does_not_refuse_the_retry_of_a_committed_id(world: World) {
    for id in ["a", "b", "c"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    let fourth = world.broker.publish(&caller("alice"), draft("alice", "d", "x")).await;
    assert!(matches!(fourth, Published::Refused(Refusal::BudgetSpent { .. })), "{fourth:?}");
    let asked = world.limiter.asked.load(Ordering::SeqCst);
    let again = world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await;
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
    assert_eq!(world.limiter.asked.load(Ordering::SeqCst), asked, "no limiter is asked about what is known");
    assert_eq!(world.rows("message_history").await, 3);
}

pub(crate) async fn ten_sends_of_one_id_cost_one_unit(world: World) {
    let nowhere = || draft_of("alice", "a", r#"{"to":{"topic":"nowhere"},"body":1}"#);
    for _ in 0..10 {
        let refused = world.broker.publish(&caller("alice"), nowhere()).await;
        assert_eq!(refused, Published::Refused(Refusal::DestinationUnknown));
    }
    for id in ["b", "c"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    let spent = world.broker.publish(&caller("alice"), draft("alice", "d", "x")).await;
    assert!(matches!(spent, Published::Refused(Refusal::BudgetSpent { .. })), "{spent:?}");
    let metrics = world.broker.metrics().await.unwrap();
    let counted = "cm_broker_rate_limit_consumed_then_b2_rejected_total 10";
    assert!(metrics.contains(counted), "{metrics}");
}

pub(crate) async fn a_known_id_is_one_statement_and_no_limiter(world: World) {
    let first = accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    let (statements, asked) =
        (world.db.watch.statements.load(Ordering::SeqCst), world.limiter.asked.load(Ordering::SeqCst));
    let again = world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await;
    assert_eq!(again, Published::Duplicate(first));
    assert_eq!(world.db.watch.statements.load(Ordering::SeqCst) - statements, 1);
    assert_eq!(world.limiter.asked.load(Ordering::SeqCst), asked);
}

/// A lowered limit is for what comes anew. A retry that is refused for its size would be dead, though it was accepted.
pub(crate) async fn a_retry_of_what_is_known_is_told_though_it_is_too_large_by_now(world: World) {
    let body = "x".repeat(1000);
    let first = accepted(world.broker.publish(&caller("alice"), draft("alice", "a", &body)).await);
    world.broker.set_settings(Settings { inline_bytes: 100, ..Settings::default() }).unwrap();
    let again = world.broker.publish(&caller("alice"), draft("alice", "a", &body)).await;
    assert_eq!(again, Published::Duplicate(first));
    let new = world.broker.publish(&caller("alice"), draft("alice", "b", &body)).await;
    assert_eq!(new, Published::Refused(Refusal::PayloadTooLarge { limit: 100 }));
    assert_eq!(world.rows("client_message_dedupe").await, 1);
}

async fn put_webhook(world: &World) {
    let secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
    for name in ["w", "v"] {
        let body = WebhookBody {
            url: "https://example.com/hook".to_owned(),
            topic: "t".to_owned(),
            secrets: secrets.clone(),
            ordered: true,
        };
        world.broker.put_webhook("m", name, body).await.unwrap();
    }
}

pub(crate) async fn each_insert_that_fails_leaves_nothing_and_the_id_free(world: World) {
    put_webhook(&world).await;
    let topic = r#"{"to":{"topic":"t"},"body":1,"mentions":["bob","carol"]}"#;
    let direct = r#"{"to":{"member":"bob"},"body":1,"mentions":["bob"]}"#;
    let before = world.all_rows().await;
    for table in TABLES.iter().chain(&["UPDATE line"]) {
        let text = if *table == "message_queue" { direct } else { topic };
        let failing =
            if table.starts_with("UPDATE") { (*table).to_owned() } else { format!("INSERT INTO {table} ") };
        world.db.watch.fail(Some(&failing));
        let refused = world.broker.publish(&caller("alice"), draft_of("alice", "a", text)).await;
        assert!(matches!(refused, Published::Refused(Refusal::Unavailable(_))), "{table}: {refused:?}");
        world.db.watch.fail(None);
        assert_eq!(world.all_rows().await, before, "{table}");
    }
    accepted(world.broker.publish(&caller("alice"), draft_of("alice", "a", topic)).await);
    accepted(world.broker.publish(&caller("alice"), draft_of("alice", "b", direct)).await);
    let counts = world.all_rows().await;
    let expected = [2, 1, 1, 2, 3, 2, 2];
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), expected, "{counts:?}");
    world.assert_no_orphans().await;
}

pub(crate) async fn a_commit_whose_answer_is_lost_is_told_by_the_retry(world: World) {
    world.db.watch.loses_commit.store(true, Ordering::SeqCst);
    let unknown = world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await;
    assert!(matches!(unknown, Published::Refused(Refusal::Unavailable(_))), "{unknown:?}");
    let again = world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await;
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
    assert_eq!(world.rows("message_history").await, 1);
}

pub(crate) async fn what_was_refused_may_be_sent_again_with_its_id(world: World) {
    let to = |topic: &str| draft_of("carol", "a", &format!(r#"{{"to":{{"topic":"{topic}"}},"body":1}}"#));
    let unknown = world.broker.publish(&caller("carol"), to("later")).await;
    assert_eq!(unknown, Published::Refused(Refusal::DestinationUnknown));
    world.broker.put_topic("m", "later", "subscribers").await.unwrap();
    let unsubscribed = world.broker.publish(&caller("carol"), to("later")).await;
    assert_eq!(unsubscribed, Published::Refused(Refusal::NotSubscribed));
    world.broker.put_subscription("m", "later", "carol").await.unwrap();
    accepted(world.broker.publish(&caller("carol"), to("later")).await);
    // A topic may let every member publish.
    world.broker.put_topic("m", "open", "members").await.unwrap();
    let open = draft_of("bob", "b", r#"{"to":{"topic":"open"},"body":1}"#);
    accepted(world.broker.publish(&caller("bob"), open).await);
    let nobody = draft_of("bob", "c", r#"{"to":{"member":"dave"},"body":1}"#);
    let unknown = world.broker.publish(&caller("bob"), nobody).await;
    assert_eq!(unknown, Published::Refused(Refusal::DestinationUnknown));
    world.assert_no_orphans().await;
}

pub(crate) async fn late_destinations_have_their_grace(world: World) {
    let settings = Settings { b2_retry: std::time::Duration::from_secs(30), ..Settings::default() };
    world.broker.set_settings(settings).unwrap();
    let late = || draft_of("alice", "a", r#"{"to":{"topic":"late"},"body":1}"#);
    let early = world.broker.publish(&caller("alice"), late()).await;
    assert_eq!(early, Published::Refused(Refusal::DestinationLate));
    world.broker.put_topic("m", "late", "members").await.unwrap();
    accepted(world.broker.publish(&caller("alice"), late()).await);
}

pub(crate) async fn a_full_mesh_takes_no_more(world: World) {
    let wish = semel_broker::MeshWish { bytes_max: Some(10), search: true };
    world.broker.put_mesh("m", wish).await.unwrap();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "1234")).await);
    let full = world.broker.publish(&caller("alice"), draft("alice", "b", "1234")).await;
    assert_eq!(full, Published::Refused(Refusal::MeshFull { limit: 10 }));
    let again = world.broker.publish(&caller("alice"), draft("alice", "a", "1234")).await;
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
}

/// Two brokers publish to one line: numbers are given once, without holes, and a reader that pages along never finds one below
/// its cursor.
pub(crate) async fn the_order_of_numbers_is_the_order_of_commits(world: World, each: usize) {
    let other = world.another().await;
    let mut sends = tokio::task::JoinSet::new();
    for (at, broker) in
        [world.broker.clone(), other.clone(), world.broker.clone(), other].into_iter().enumerate()
    {
        sends.spawn(async move {
            for number in 0..each {
                let id = format!("{at}-{number}");
                accepted(broker.publish(&caller("alice"), draft("alice", &id, &id)).await);
            }
        });
    }
    let total = 4 * each;
    let reading = async {
        let (mut after, mut seen) = ("0".to_owned(), Vec::new());
        while seen.len() < total {
            let page = world
                .broker
                .history(&caller("bob"), &LineName::Topic("t".to_owned()), Some(&after), None)
                .await;
            for message in page.unwrap().messages {
                let message: serde_json::Value = serde_json::from_str(message.get()).unwrap();
                after = message["id"].as_str().unwrap().to_owned();
                seen.push(after.split('.').nth(1).unwrap().parse::<usize>().unwrap());
            }
            tokio::task::yield_now().await;
        }
        seen
    };
    let seen =
        tokio::time::timeout(std::time::Duration::from_secs(20), reading).await.expect("a message is lost");
    assert_eq!(seen, (1..=total).collect::<Vec<_>>());
    while let Some(sent) = sends.join_next().await {
        sent.unwrap();
    }
    world.assert_no_orphans().await;
}

/// Subscribing and unsubscribing while others publish: what was accepted before is not the member's, what is accepted after is.
pub(crate) async fn subscribing_in_the_middle_is_exact(world: World, each: usize) {
    let other = world.another().await;
    let line = LineName::Topic("t".to_owned());
    for round in 0..8 {
        let mut sends = tokio::task::JoinSet::new();
        for (at, broker) in [world.broker.clone(), other.clone()].into_iter().enumerate() {
            sends.spawn(async move {
                let mut receipts = Vec::new();
                for number in 0..each {
                    let id = format!("{round}-{at}-{number}");
                    let receipt = accepted(broker.publish(&caller("alice"), draft("alice", &id, "x")).await);
                    let view = broker.receipt(&caller("alice"), &id).await.unwrap();
                    receipts.push((id, receipt, view.recipients));
                }
                receipts
            });
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        other.put_subscription("m", "t", "carol").await.unwrap();
        let since = other.subscriptions("m", "t", Some("carol")).await.unwrap()[0].since;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let before_end = accepted(
            world.broker.publish(&caller("alice"), draft("alice", &format!("{round}-in"), "x")).await,
        );
        other.remove_subscription("m", "t", "carol").await.unwrap();
        let after_end = accepted(
            world.broker.publish(&caller("alice"), draft("alice", &format!("{round}-out"), "x")).await,
        );
        let all: Vec<_> = sends.join_all().await.into_iter().flatten().collect();
        for (id, _, recipients) in &all {
            let view = other.receipt(&caller("alice"), id).await.unwrap();
            assert_eq!(
                view.recipients, *recipients,
                "whom a message is for does not change once it is accepted"
            );
        }
        let first: Vec<i64> = all.iter().map(|(_, receipt, _)| receipt.history_id.number).collect();
        let page = world.broker.history(&caller("carol"), &line, Some("0"), Some(500)).await.unwrap();
        let own: Vec<i64> =
            page.messages.iter().map(|message| number_of(message.get())).filter(|n| *n >= since).collect();
        let (Some(begin), Some(end)) = (own.first().copied(), own.last().copied()) else {
            panic!("nothing is carol's")
        };
        assert_eq!(own, (begin..=end).collect::<Vec<_>>(), "no hole");
        assert_eq!(begin, since);
        assert!(end >= before_end.history_id.number && end < after_end.history_id.number);
        assert!(first.iter().all(|number| (since..=end).contains(number) == own.contains(number)));
    }
    world.assert_no_orphans().await;
}

fn number_of(message: &str) -> i64 {
    let message: serde_json::Value = serde_json::from_str(message).unwrap();
    message["id"].as_str().unwrap().split('.').nth(1).unwrap().parse().unwrap()
}

/// What a test of budgets begins with.
pub(crate) fn three_a_minute() -> Settings {
    Settings { budget: rate(3, 3600), ..Settings::default() }
}
