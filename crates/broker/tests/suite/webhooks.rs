//! Webhooks whose owners change them, whose messages fail, and that must not hold up one another.

use std::time::Duration;

use semel_broker::WebhookBody;

use super::kit::{World, accepted, caller, draft, eventually};
use super::upkeep::{Receiver, hook, listen};

fn ids(receiver: &Receiver) -> Vec<String> {
    receiver.got.lock().unwrap().iter().map(|(id, _)| id.clone()).collect()
}

/// More of them than are looked at or sent to at a time, each with a message behind the one that fails.
pub(crate) async fn webhooks_that_wait_hold_up_no_others(world: World) {
    // Nobody listens there.
    let nowhere = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/", socket.local_addr().unwrap())
    };
    for at in 0..70 {
        world.broker.put_webhook("m", &format!("blocked-{at:02}"), hook(&nowhere)).await.unwrap();
    }
    for id in ["a", "b"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    // Of each the first message failed and waits; the second is due.
    world.execute("UPDATE delivery_waiting SET due_at = due_at + 3600000 WHERE number = 1").await;
    let receiver = Receiver::default();
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "good", hook(&url)).await.unwrap();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "c", "x")).await);
    let running = world.broker.start();
    eventually("the delivery of the one that can be reached", || async { ids(&receiver) == ["c"] }).await;
    running.stop().await;
}

/// A worker that is in the middle of a message: what comes after it goes where the webhook leads by now.
pub(crate) async fn a_webhook_that_was_changed_is_sent_to_as_it_is_now(world: World) {
    let (old, new) = (Receiver::default(), Receiver::default());
    let held = old.hold();
    let (old_url, new_url) = (listen(old.clone()).await, listen(new.clone()).await);
    world.broker.put_webhook("m", "w", hook(&old_url)).await.unwrap();
    for id in ["a", "b"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    let running = world.broker.start();
    eventually("the first attempt", || async { ids(&old) == ["a"] }).await;
    world.broker.put_webhook("m", "w", hook(&new_url)).await.unwrap();
    drop(held);
    eventually("both deliveries", || async { ids(&new).ends_with(&["b".to_owned()]) }).await;
    assert_eq!(ids(&old), ["a"], "nothing more goes to the address that it had");
    assert_eq!(ids(&new), ["a", "b"], "what the former worker could not write down is sent again");
    running.stop().await;
    // Said again as it is, it disturbs nobody.
    world.execute("UPDATE webhook SET lease_until = 1").await;
    world.broker.put_webhook("m", "w", hook(&new_url)).await.unwrap();
    assert_eq!(world.rows("webhook WHERE lease_until = 1").await, 1);
    world.assert_no_orphans().await;
}

pub(crate) async fn nothing_is_sent_for_a_mesh_that_was_removed(world: World) {
    let receiver = Receiver::default();
    let held = receiver.hold();
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "w", hook(&url)).await.unwrap();
    for id in ["a", "b"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    let running = world.broker.start();
    eventually("the first attempt", || async { ids(&receiver) == ["a"] }).await;
    world.broker.remove_mesh("m").await.unwrap();
    drop(held);
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(ids(&receiver), ["a"]);
    assert_eq!(world.rows("delivery_waiting").await, 0, "nothing of it waits for ever");
    running.stop().await;
    world.assert_no_orphans().await;
}

/// Its age counts from the requeue: otherwise the first failure would be the last.
pub(crate) async fn a_delivery_that_is_requeued_after_days_is_tried_again_and_again(world: World) {
    let receiver = Receiver::default();
    *receiver.refuses.lock().unwrap() = true;
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "w", hook(&url)).await.unwrap();
    let running = world.broker.start();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    let dead = "delivery_queue WHERE status = 'dead'";
    eventually("its end", || async { world.rows(dead).await == 1 }).await;
    world.execute("UPDATE delivery_queue SET created_at = created_at - 604800000").await;
    *receiver.refuses.lock().unwrap() = false;
    *receiver.failures.lock().unwrap() = 1;
    assert_eq!(world.broker.requeue_dead("m", "w").await.unwrap(), 1);
    eventually("its delivery", || async {
        world.rows("delivery_queue WHERE status = 'delivered'").await == 1
    })
    .await;
    running.stop().await;
}

pub(crate) async fn a_webhook_that_is_made_again_for_another_topic_leaves_nothing_behind(world: World) {
    world.broker.put_webhook("m", "w", hook("https://example.com/")).await.unwrap();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    world.broker.remove_webhook("m", "w").await.unwrap();
    world.broker.put_topic("m", "u", "subscribers").await.unwrap();
    let other = WebhookBody { topic: "u".to_owned(), ..hook("https://example.com/") };
    world.broker.put_webhook("m", "w", other).await.unwrap();
    assert_eq!(world.broker.requeue_dead("m", "w").await.unwrap(), 0, "what was of the other topic stays so");
    assert_eq!(world.rows("delivery_waiting").await, 0);
    world.assert_no_orphans().await;
    world.execute("UPDATE client_message_dedupe SET expires_at = 0").await;
    world.broker.sweep().await.unwrap();
    assert_eq!(world.rows("delivery_queue").await + world.rows("delivery_waiting").await, 0);
}
