//! Streams: everything after a cursor, then live, without a gap in between; and their ends.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use semel_broker::{Broker, Settings};

use super::kit::{World, accepted, caller, draft, draft_of};
use super::web::Web;

const TOPIC: &str = "/v1/meshes/m/topics/t/events";

async fn publish(broker: &Broker, id: &str) {
    accepted(broker.publish(&caller("alice"), draft("alice", id, id)).await);
}

pub(crate) async fn a_reader_gets_history_then_live_and_resumes(world: World) {
    let (web, other) = (Web::new(&world), world.another().await);
    for id in ["a", "b"] {
        publish(&world.broker, id).await;
    }
    let mut events = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    let first = events.take(2).await;
    assert_eq!([&first[0].data["client_message_id"], &first[1].data["client_message_id"]], ["a", "b"]);
    publish(&world.broker, "c").await;
    publish(&other, "d").await;
    let live = events.take(2).await;
    assert_eq!([&live[0].data["client_message_id"], &live[1].data["client_message_id"]], ["c", "d"]);
    assert_eq!(live[1].data["id"], live[1].id.as_str());
    assert_eq!(live[1].data["line"], "topic:t");
    drop(events);
    publish(&world.broker, "e").await;
    let mut resumed = web.stream(TOPIC, Some("bob"), Some(&live[0].id)).await.unwrap();
    let rest = resumed.take(2).await;
    assert_eq!([&rest[0].data["client_message_id"], &rest[1].data["client_message_id"]], ["d", "e"]);
    // Without a word about it, a stream begins at the newest.
    let mut newest = web.stream(TOPIC, Some("bob"), None).await.unwrap();
    publish(&world.broker, "f").await;
    assert_eq!(newest.next().await.unwrap().data["client_message_id"], "f");
    // A sender knows its echo.
    let tagged = draft_of("alice", "g", r#"{"to":{"topic":"t"},"body":1,"client_tx_id":"mine"}"#);
    accepted(world.broker.publish(&caller("alice"), tagged).await);
    assert_eq!(newest.next().await.unwrap().data["client_tx_id"], "mine");
}

pub(crate) async fn readers_that_come_while_others_publish_miss_nothing(world: World, count: usize) {
    let (web, other) = (Web::new(&world), world.another().await);
    let publishing = {
        let broker = world.broker.clone();
        tokio::spawn(async move {
            for at in 0..count {
                let broker = if at % 3 == 0 { &other } else { &broker };
                publish(broker, &format!("p{at}")).await;
            }
        })
    };
    let mut last: Option<String> = None;
    let mut seen = Vec::new();
    while seen.len() < count {
        let path = format!("{TOPIC}?after=0");
        let mut events = web.stream(&path, Some("bob"), last.as_deref()).await.unwrap();
        for event in events.take((count - seen.len()).min(17)).await {
            assert_eq!(event.event, "", "no gap: {event:?}");
            seen.push(event.data["client_message_id"].as_str().unwrap().to_owned());
            last = Some(event.id);
        }
    }
    publishing.await.unwrap();
    let expected: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
    assert_eq!(seen, expected);
}

pub(crate) async fn several_lines_are_one_stream_that_resumes(world: World) {
    let web = Web::new(&world);
    let path = "/v1/meshes/m/events?line=topic:t&line=direct";
    let direct = |id: &str| draft_of("alice", id, r#"{"to":{"member":"bob"},"body":1}"#);
    publish(&world.broker, "t1").await;
    accepted(world.broker.publish(&caller("alice"), direct("d1")).await);
    let mut events = web.stream(&format!("{path}&after=0"), Some("bob"), None).await.unwrap();
    let first = events.take(2).await;
    let lines: Vec<&str> = first.iter().map(|event| event.data["line"].as_str().unwrap()).collect();
    assert_eq!(lines, ["topic:t", "direct"]);
    publish(&world.broker, "t2").await;
    let third = events.next().await.unwrap();
    assert_eq!(third.data["client_message_id"], "t2");
    drop(events);
    accepted(world.broker.publish(&caller("alice"), direct("d2")).await);
    let mut resumed = web.stream(path, Some("bob"), Some(&third.id)).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().data["client_message_id"], "d2");
    // An id of one line alone: of the other line everything that was not acknowledged comes again, and nothing is left out.
    let plain = third.data["id"].as_str().unwrap();
    let mut by_one = web.stream(path, Some("bob"), Some(plain)).await.unwrap();
    let again = by_one.take(2).await;
    let ids: Vec<&str> =
        again.iter().map(|event| event.data["client_message_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["d1", "d2"]);
    let ack = format!(r#"{{"up_to":"{}"}}"#, third.id);
    let told = web.ask(Method::POST, "/v1/meshes/m/topics/t/ack", Some("bob"), &ack).await;
    assert_eq!((told.status, told.json()["acknowledged"].as_i64()), (StatusCode::OK, Some(2)));
}

/// A reader that waits for messages that are gone would read the history again and again.
pub(crate) async fn a_stream_over_messages_that_are_gone_says_so_and_rests(world: World) {
    let web = Web::new(&world);
    for id in ["a", "b"] {
        publish(&world.broker, id).await;
    }
    world.execute("UPDATE client_message_dedupe SET expires_at = 0").await;
    assert_eq!(world.broker.sweep().await.unwrap().messages, 2);
    let mut events = web.stream(TOPIC, Some("bob"), Some("0")).await.unwrap();
    let before = world.db.watch.statements.load(Ordering::SeqCst);
    let mut gaps = Vec::new();
    while let Ok(event) = tokio::time::timeout(Duration::from_millis(400), events.next()).await {
        let event = event.expect("the stream stays open");
        assert_eq!(event.event, "gap", "{event:?}");
        gaps.push(event.data["reason"].as_str().map(str::to_owned));
    }
    assert_eq!(gaps, [Some("swept".to_owned())], "told once");
    let read = world.db.watch.statements.load(Ordering::SeqCst) - before;
    assert!(read < 100, "{read} statements while nothing happened");
    publish(&world.broker, "c").await;
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "c");
}

/// A reader that goes after the first thing it is told has not been told the rest.
pub(crate) async fn a_gap_that_was_not_handed_out_is_said_to_whoever_resumes(world: World) {
    let web = Web::new(&world);
    let path = "/v1/meshes/m/events?line=topic:t&line=direct";
    let direct = |id: &str| draft_of("alice", id, r#"{"to":{"member":"bob"},"body":1}"#);
    publish(&world.broker, "t1").await;
    accepted(world.broker.publish(&caller("alice"), direct("d1")).await);
    let mut events = web.stream(&format!("{path}&after=0"), Some("bob"), None).await.unwrap();
    let mut last = events.take(2).await.pop().unwrap().id;
    drop(events);
    publish(&world.broker, "t2").await;
    accepted(world.broker.publish(&caller("alice"), direct("d2")).await);
    world.execute("UPDATE client_message_dedupe SET expires_at = 0").await;
    assert_eq!(world.broker.sweep().await.unwrap().messages, 4);
    let mut told = Vec::new();
    for _ in 0..2 {
        // One event of each stream, and then away.
        let mut events = web.stream(path, Some("bob"), Some(&last)).await.unwrap();
        let event = events.next().await.unwrap();
        told.push((event.event, event.data["line"].as_str().unwrap_or_default().to_owned()));
        last = event.id;
    }
    assert_eq!(told, ["topic:t", "direct"].map(|line| ("gap".to_owned(), line.to_owned())));
    let mut events = web.stream(path, Some("bob"), Some(&last)).await.unwrap();
    accepted(world.broker.publish(&caller("alice"), direct("d3")).await);
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "d3", "each gap is told once");
}

pub(crate) async fn a_cursor_that_is_lost_leads_to_a_gap(world: World) {
    let web = Web::new(&world);
    for id in ["a", "b", "c"] {
        publish(&world.broker, id).await;
    }
    let page = web.ask(Method::GET, "/v1/meshes/m/topics/t/history", Some("bob"), "").await.json();
    let ids: Vec<String> = (0..3).map(|at| page["messages"][at]["id"].as_str().unwrap().to_owned()).collect();
    let gap = |last: String| {
        let web = &web;
        async move {
            let mut events = web.stream(TOPIC, Some("bob"), Some(&last)).await.unwrap();
            let (gap, next) = (events.next().await.unwrap(), events.next().await.unwrap());
            assert_eq!(gap.event, "gap", "{gap:?}");
            assert_eq!(gap.data["line"], "topic:t");
            assert_eq!(gap.data["from"], last.as_str());
            (
                gap.data["reason"].as_str().unwrap().to_owned(),
                next.data["client_message_id"].as_str().unwrap().to_owned(),
            )
        }
    };
    let epoch = ids[0].split('.').next().unwrap().to_owned();
    assert_eq!(gap(format!("{epoch}.99.0000")).await, ("ahead".to_owned(), "a".to_owned()));
    let wrong = format!("{}0", &ids[1][..ids[1].len() - 1]);
    if wrong != ids[1] {
        assert_eq!(gap(wrong).await, ("check".to_owned(), "a".to_owned()));
    }
    // The first message goes.
    world
        .execute("UPDATE client_message_dedupe SET expires_at = 0 WHERE client_message_id IN ('a', 'b')")
        .await;
    assert_eq!(world.broker.sweep().await.unwrap().messages, 2);
    assert_eq!(gap(ids[0].clone()).await, ("swept".to_owned(), "c".to_owned()));
    let new = world.broker.restored().await.unwrap();
    assert!(new > epoch.parse::<i64>().unwrap());
    let mut events = web.stream(TOPIC, Some("bob"), Some(&ids[2])).await.unwrap();
    let gap = events.next().await.unwrap();
    assert_eq!((gap.event.as_str(), gap.data["reason"].as_str()), ("gap", Some("epoch")));
    publish(&world.broker, "d").await;
    let next = events.next().await.unwrap();
    assert_eq!(next.data["client_message_id"], "d", "the last message itself is known: nothing comes twice");
    assert!(next.id.starts_with(&format!("{new}.")));
    world.assert_no_orphans().await;
}

pub(crate) async fn consumers_have_their_own_cursors_and_the_newest_stream_counts(world: World) {
    let web = Web::new(&world);
    for id in ["a", "b", "c"] {
        publish(&world.broker, id).await;
    }
    let mut one = web.stream(&format!("{TOPIC}?consumer=one"), Some("bob"), None).await.unwrap();
    let events = one.take(3).await;
    assert_eq!(events[0].data["client_message_id"], "a", "a new consumer begins where the subscription does");
    let ack = format!(r#"{{"up_to":"{}","consumer":"one"}}"#, events[1].id);
    let told = web.ask(Method::POST, "/v1/meshes/m/topics/t/ack", Some("bob"), &ack).await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.text);
    let mut newer = web.stream(&format!("{TOPIC}?consumer=one"), Some("bob"), None).await.unwrap();
    assert_eq!(one.next().await, None, "of two streams the newest counts");
    assert_eq!(newer.next().await.unwrap().data["client_message_id"], "c");
    let mut two = web.stream(&format!("{TOPIC}?consumer=two"), Some("bob"), None).await.unwrap();
    assert_eq!(two.next().await.unwrap().data["client_message_id"], "a");
    let view = world.broker.receipt(&caller("alice"), "b").await.unwrap();
    assert_eq!((view.recipients, view.acknowledged), (2, 1));
    let ahead = r#"{"up_to":"1.99.0000"}"#;
    let told = web.ask(Method::POST, "/v1/meshes/m/topics/t/ack", Some("bob"), ahead).await;
    assert_eq!(told.status, StatusCode::BAD_REQUEST);
}

pub(crate) async fn a_revoked_member_loses_its_streams_within_a_second(world: World) {
    let (web, other) = (Web::new(&world), world.another().await);
    let _running = world.broker.start();
    let ticket = web.ask(Method::POST, "/v1/meshes/m/ticket", Some("bob"), "").await.json();
    let ticket = ticket["ticket"].as_str().unwrap();
    let mut by_token = web.stream(TOPIC, Some("bob"), None).await.unwrap();
    let mut by_ticket = web.stream(&format!("{TOPIC}?ticket={ticket}"), None, None).await.unwrap();
    publish(&world.broker, "a").await;
    assert_eq!(by_token.next().await.unwrap().data["client_message_id"], "a");
    assert_eq!(by_ticket.next().await.unwrap().data["client_message_id"], "a");
    // At another broker.
    other.put_member("m", "bob", semel_broker::Role::Member, &[]).await.unwrap();
    let begun = Instant::now();
    assert_eq!(by_token.next().await, None);
    assert_eq!(by_ticket.next().await, None);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(web.stream(TOPIC, Some("bob"), None).await.err().unwrap().status, StatusCode::UNAUTHORIZED);
    let refused = web.stream(&format!("{TOPIC}?ticket={ticket}"), None, None).await.err().unwrap();
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
}

pub(crate) async fn what_was_published_before_the_end_of_a_subscription_is_still_read(world: World) {
    let web = Web::new(&world);
    publish(&world.broker, "a").await;
    let mut events = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "a");
    publish(&world.broker, "b").await;
    world.broker.remove_subscription("m", "t", "bob").await.unwrap();
    publish(&world.broker, "c").await;
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "b");
    assert_eq!(events.next().await, None, "what came later is not bob's");
    let mut late = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    assert_eq!(late.take(2).await.len(), 2);
    assert_eq!(late.next().await, None);
}

pub(crate) async fn a_stop_ends_streams_at_a_cursor_that_resumes(world: World) {
    let web = Web::new(&world);
    let running = world.broker.start();
    publish(&world.broker, "a").await;
    let mut events = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    let first = events.next().await.unwrap();
    running.stop().await;
    assert_eq!(events.next().await, None);
    let draining = web.publish("alice", "z", r#"{"to":{"topic":"t"},"body":1}"#).await;
    assert_eq!(draining.status, StatusCode::SERVICE_UNAVAILABLE);
    let next = world.another().await;
    publish(&next, "b").await;
    let world = World { broker: next, ..world };
    let mut resumed = Web::new(&world).stream(TOPIC, Some("bob"), Some(&first.id)).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().data["client_message_id"], "b");
}

pub(crate) async fn nothing_is_pushed_that_is_not_committed(world: World) {
    let web = Web::new(&world);
    let mut events = web.stream(TOPIC, Some("bob"), None).await.unwrap();
    for _ in 0..5 {
        world.db.watch.fail(Some("INSERT INTO message_history"));
        let _ = world.broker.publish(&caller("alice"), draft("alice", "never", "x")).await;
        world.db.watch.fail(None);
    }
    publish(&world.broker, "a").await;
    let first = events.next().await.unwrap();
    assert_eq!(first.data["client_message_id"], "a", "a message that was refused reached a reader");
}

pub(crate) async fn silence_is_broken_by_heart_beats(world: World) {
    let settings = Settings { heartbeat: Duration::from_millis(50), ..Settings::default() };
    world.broker.set_settings(settings).unwrap();
    let web = Web::new(&world);
    let asked = super::web::request(Method::GET, TOPIC, Some("bob"), &[], "");
    let response = tower::ServiceExt::oneshot(web.listen.clone(), asked).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while text.matches(":\n\n").count() < 3 {
        let piece = futures_util::StreamExt::next(&mut body).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
}

/// A reader that takes nothing for a while falls out of what is handed out live, and reads the history instead.
pub(crate) async fn a_slow_reader_reads_the_history_at_its_own_pace(world: World) {
    let web = Web::new(&world);
    let (mut slow, mut quick) = (
        web.stream(TOPIC, Some("bob"), None).await.unwrap(),
        web.stream(TOPIC, Some("alice"), None).await.unwrap(),
    );
    publish(&world.broker, "first").await;
    assert_eq!(slow.next().await.unwrap().data["client_message_id"], "first");
    let drafts = (0..600).map(|at| Ok(draft("alice", &format!("s{at}"), "x"))).collect();
    world.broker.publish_all(&caller("alice"), drafts).await.into_iter().for_each(|one| drop(accepted(one)));
    assert_eq!(quick.take(601).await.len(), 601);
    for (at, event) in slow.take(600).await.into_iter().enumerate() {
        assert_eq!(event.data["client_message_id"], format!("s{at}"), "{event:?}");
    }
}

/// A restore or a fail-over under streams that are open: what is numbered anew is not what they wait for.
pub(crate) async fn a_store_that_goes_back_ends_its_streams(world: World) {
    let settings = Settings { poll: Duration::from_millis(50), ..Settings::default() };
    let broker = {
        world.broker.set_settings(settings).unwrap();
        world.another().await
    };
    let world = World { broker, ..world };
    let web = Web::new(&world);
    let mut events = web.stream(TOPIC, Some("bob"), Some("0")).await.unwrap();
    for id in ["a", "b", "c"] {
        publish(&world.broker, id).await;
    }
    let last = events.take(3).await.pop().unwrap();
    for sql in [
        "DELETE FROM message_history WHERE number > 1",
        "DELETE FROM topic_message WHERE client_message_id <> 'a'",
        "DELETE FROM client_message_dedupe WHERE client_message_id <> 'a'",
        "UPDATE line SET next_number = 2 WHERE kind = 'topic'",
    ] {
        world.execute(sql).await;
    }
    let other = world.another().await;
    for id in ["d", "e", "f"] {
        publish(&other, id).await;
    }
    // Told by the next commit at this broker at the latest.
    publish(&world.broker, "g").await;
    assert_eq!(events.next().await, None, "its numbers are others' now");
    let mut again = web.stream(TOPIC, Some("bob"), Some(&last.id)).await.unwrap();
    let gap = again.next().await.unwrap();
    assert_eq!((gap.event.as_str(), gap.data["reason"].as_str()), ("gap", Some("check")));
    let ids: Vec<_> =
        again.take(5).await.into_iter().map(|event| event.data["client_message_id"].clone()).collect();
    assert_eq!(ids, ["a", "d", "e", "f", "g"]);
}

pub(crate) async fn a_new_epoch_ends_streams(world: World) {
    let web = Web::new(&world);
    let mut events = web.stream(TOPIC, Some("bob"), Some("0")).await.unwrap();
    publish(&world.broker, "a").await;
    let last = events.next().await.unwrap();
    world.broker.restored().await.unwrap();
    assert_eq!(events.next().await, None);
    let mut again = web.stream(TOPIC, Some("bob"), Some(&last.id)).await.unwrap();
    assert_eq!(again.next().await.unwrap().data["reason"], "epoch");
}

/// The broker of the stream never looks at who is subscribed; the feed alone has to tell it.
pub(crate) async fn a_stream_is_exact_while_its_subscription_changes_at_another_broker(world: World) {
    let (reads, writes) = (world.another().await, world.broker.clone());
    let web = Web::new(&World { broker: reads, db: world.db.clone(), limiter: world.limiter.clone() });
    let path = "/v1/meshes/m/events?line=topic:t&line=direct";
    let mut events = web.stream(path, Some("bob"), None).await.unwrap();
    publish(&writes, "a").await;
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "a");
    writes.remove_subscription("m", "t", "bob").await.unwrap();
    publish(&writes, "not his").await;
    let mut later = web.stream(path, Some("bob"), None).await.unwrap();
    writes.put_subscription("m", "t", "bob").await.unwrap();
    for id in ["b", "c"] {
        publish(&writes, id).await;
        for events in [&mut events, &mut later] {
            assert_eq!(events.next().await.unwrap().data["client_message_id"], id);
        }
    }
}

/// S4-54. What an owner hides is hidden from those, too, who have it on their screens and are sent nothing else.
pub(crate) async fn readers_hear_of_what_is_hidden(world: World) {
    let (web, other) = (Web::new(&world), Web::new(&World { broker: world.another().await, ..world.same() }));
    for id in ["a", "b"] {
        publish(&world.broker, id).await;
    }
    world.broker.put_subscription("m", "t", "carol").await.unwrap();
    publish(&world.broker, "c").await;
    let mut here = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    let several = "/v1/meshes/m/events?line=topic:t&line=direct&after=0";
    let mut elsewhere = other.stream(several, Some("bob"), None).await.unwrap();
    // It has not asked for what was before.
    let mut newest = web.stream(TOPIC, Some("bob"), None).await.unwrap();
    let mut late = web.stream(&format!("{TOPIC}?after=0"), Some("carol"), None).await.unwrap();
    let seen = here.take(3).await;
    let place = elsewhere.take(3).await[2].id.clone();
    assert_eq!(late.next().await.unwrap().data["client_message_id"], "c");
    let moderation = "/v1/meshes/m/messages/a/moderation";
    for _ in 0..2 {
        let hidden = web.ask(Method::POST, moderation, Some("alice"), r#"{"reason":"spam"}"#).await;
        assert_eq!(hidden.status, StatusCode::OK, "{}", hidden.text);
    }
    let told = here.next().await.unwrap();
    assert_eq!((told.event.as_str(), &told.id), ("moderated", &seen[2].id), "the place stays");
    assert_eq!(told.data["id"], seen[0].data["id"]);
    assert_eq!((&told.data["moderated"], told.data.get("body")), (&serde_json::json!(true), None));
    let told_elsewhere = elsewhere.next().await.unwrap();
    assert_eq!((told_elsewhere.event.as_str(), &told_elsewhere.id), ("moderated", &place));
    assert_eq!(told_elsewhere.data, told.data);
    assert_eq!(newest.next().await.unwrap().data, told.data);
    // Once, and nobody whose message it is not.
    publish(&world.broker, "d").await;
    for events in [&mut here, &mut elsewhere, &mut newest, &mut late] {
        let next = events.next().await.unwrap();
        assert_eq!((next.event.as_str(), next.data["client_message_id"].as_str()), ("", Some("d")));
    }
    let mut resumed = web.stream(TOPIC, Some("bob"), Some(&told.id)).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().data["client_message_id"], "d");
    world.assert_no_orphans().await;
}

/// A reader that falls behind what is handed out finds what was hidden meanwhile.
pub(crate) async fn what_was_hidden_while_a_reader_was_slow_is_told(world: World) {
    let web = Web::new(&world);
    publish(&world.broker, "first").await;
    let mut events = web.stream(&format!("{TOPIC}?after=0"), Some("bob"), None).await.unwrap();
    assert_eq!(events.next().await.unwrap().data["client_message_id"], "first");
    let publishing = (0..400).map(|at| {
        let broker = world.broker.clone();
        async move { publish(&broker, &format!("p{at}")).await }
    });
    world.broker.moderate("m", "first", "alice", "spam").await.unwrap();
    futures_util::future::join_all(publishing).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let events = events.take(401).await;
    let told = events.iter().filter(|event| event.event == "moderated");
    let told: Vec<_> = told.map(|event| event.data["client_message_id"].as_str().unwrap()).collect();
    assert_eq!(told, ["first"]);
}
