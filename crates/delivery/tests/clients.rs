//! What clients on phones and desktops need: ids of one principal and kind, the time of an action on the wire, rebuilds that take
//! their time, callers that go away, clocks that were wrong, and pages that are nobody's answer.

mod scripted;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use scripted::{World, answer, header, message, pass, uuid};
use semel_delivery::accept::Acceptance;
use semel_delivery::hooks::{Hooks, Rebuilding, Rebuilt};
use semel_delivery::store::Find;
use semel_delivery::transport::Sent;
use semel_delivery::{Enqueue, Outbox, Request, Row, Status};

const DAY: Duration = Duration::from_secs(86_400);
const DAY_MS: i64 = 86_400_000;

async fn row(outbox: &Outbox, number: u32) -> Row {
    outbox.receipt(&uuid(number)).await.unwrap().unwrap()
}

fn action(number: u32, principal: &str, operation: &str) -> Enqueue {
    Enqueue {
        principal: Some(principal.to_owned()),
        operation: Some(operation.to_owned()),
        lane: None,
        ..message(number, principal)
    }
}

/// S0-135.
#[tokio::test(start_paused = true)]
async fn what_became_of_messages_is_counted_for_each_kind_of_action() {
    let world = World::quick("walker", |request, _| match header(request, "idempotency-key") == uuid(3) {
        true => answer(422, &[], r#"{"error":"STALE_ACTION"}"#),
        false => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    for (number, operation) in [(1, "allocate"), (2, "advance"), (3, "advance"), (4, "advance")] {
        outbox.enqueue(action(number, "ann", operation)).await.unwrap();
    }
    outbox.enqueue(message(5, "notes:ann")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    let metrics = outbox.metrics().await.unwrap();
    let counted: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("semel_outbox_messages_total{")).collect();
    let of = |kind: &str, operation: &str, outcome: &str, count: u32| {
        format!(r#"lane_kind="{kind}",operation="{operation}",outcome="{outcome}"}} {count}"#)
    };
    let expected = [
        of("default", "advance", "done", 2),
        of("default", "advance", "expired", 1),
        of("default", "allocate", "done", 1),
        of("notes", "", "done", 1),
    ];
    assert_eq!(counted, expected);
}

/// Applications read the first word of the reason, also where the last thing that happened was a failed attempt.
#[tokio::test(start_paused = true)]
async fn a_message_that_expires_at_a_failed_attempt_says_that_it_expired() {
    let world = World::quick("ietf", |_, _| Sent::NotSent("no network".to_owned()));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "ann")).await.unwrap();
    let _sending = outbox.start();
    pass(2 * DAY).await;
    let row = row(&outbox, 1).await;
    assert_eq!(row.status, Status::Dead);
    let why = row.last_error.unwrap();
    assert!(why.starts_with("expired: older than max_age"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn an_id_with_an_operation_is_one_principals_for_that_kind_alone() {
    let world = World::quick("walker", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    let first = outbox.enqueue(action(1, "ann", "allocate")).await.unwrap();
    let again = outbox.enqueue(action(1, "ann", "allocate")).await.unwrap();
    assert_eq!((again.acceptance, again.receipt.id), (Acceptance::Queued, first.receipt.id));
    let others = [action(1, "bob", "allocate"), action(1, "ann", "advance")];
    for other in others {
        assert_eq!(outbox.enqueue(other).await.unwrap().acceptance, Acceptance::Insert);
    }
    let scoped = |principal: &str| Find::Scoped {
        id: uuid(1),
        principal: principal.to_owned(),
        operation: "allocate".to_owned(),
    };
    let bobs = outbox.found(scoped("bob")).await.unwrap().unwrap();
    assert_eq!((&*bobs.client_message_id, bobs.operation.as_deref()), (&*uuid(1), Some("allocate")));
    assert!(outbox.receipt(&uuid(1)).await.is_err(), "the key alone names none of the three");
    outbox.enqueue(action(2, "ann", "allocate")).await.unwrap();
    assert_eq!(row(&outbox, 2).await.principal, "ann", "it names the only one");
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    let mut keys = world.keys("idempotency-key");
    keys.sort();
    assert_eq!(keys, [uuid(1), uuid(1), uuid(1), uuid(2)], "on the wire it is the key alone");
    let (events, _) = outbox.events(0, 100).await.unwrap();
    assert!(events.iter().all(|event| event.client_message_id.as_deref().is_none_or(|id| id.len() == 36)));
    let elsewhere = World::quick("mesh", |_, _| answer(200, &[], "")).open().await;
    assert!(
        elsewhere.enqueue(action(3, "ann", "allocate")).await.is_err(),
        "its servers know one use of a key"
    );
}

#[tokio::test(start_paused = true)]
async fn the_time_of_an_action_is_in_its_body_where_the_profile_has_a_place_for_it() {
    let world = World::quick("walker", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    let at = semel_contract::time::Timestamp::from_millis(scripted::START - 5000);
    let bodies = [r#"{"n":1.0}"#, "{ }", r#"{"clientGeneratedAt":"2027-01-01T00:00:00Z"}"#, "[1]"];
    for (number, body) in (1..).zip(bodies) {
        let request = Request::json("POST", "/actions", body);
        let enqueue = Enqueue { client_generated_at: Some(at), ..Enqueue::new(request) };
        outbox.enqueue(Enqueue { client_message_id: Some(uuid(number)), ..enqueue }).await.unwrap();
    }
    // The same action again, a moment later, is the same action.
    let again = Enqueue::new(Request::json("POST", "/actions", bodies[0]));
    let again = outbox.enqueue(Enqueue { client_message_id: Some(uuid(1)), ..again }).await.unwrap();
    assert_eq!(again.acceptance, Acceptance::Queued);
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    let seen = world.seen.lock().unwrap();
    let sent: Vec<String> =
        seen.iter().map(|(_, sent)| String::from_utf8(sent.body.clone()).unwrap()).collect();
    let stamped = r#""clientGeneratedAt":"2027-01-15T07:59:55Z""#;
    assert_eq!(sent, [&format!("{{\"n\":1.0,{stamped}}}"), &format!("{{ {stamped}}}"), bodies[2], bodies[3]]);
}

#[derive(Default)]
struct App {
    asked: AtomicUsize,
    fails: usize,
    expired: Mutex<Vec<usize>>,
}

impl Hooks for App {
    fn rebuild<'a>(&'a self, message: &'a Row, behind: &'a [Row]) -> Rebuilding<'a> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            if self.asked.fetch_add(1, Ordering::SeqCst) < self.fails {
                return Rebuilt::Later;
            }
            let with = |number| Enqueue {
                client_message_id: Some(uuid(number)),
                lane: Some(message.lane.clone()),
                ..Enqueue::new(Request::json("POST", "/corrected", "{}"))
            };
            Rebuilt::Replace {
                drop: behind.iter().map(|row| row.id).collect(),
                with: vec![with(101), with(102)],
            }
        })
    }

    fn expired(&self, messages: &[Row]) {
        self.expired.lock().unwrap().push(messages.len());
    }
}

fn out_of_order(app: &Arc<App>) -> World {
    let mut world = World::quick("walker", |request, _| match request.target.path.as_str() {
        "/corrected" => answer(200, &[], ""),
        _ => answer(422, &[], r#"{"error":"STEP_OUT_OF_ORDER"}"#),
    });
    world.settings.hooks = Arc::clone(app) as _;
    world
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_may_take_its_time_and_fail_and_is_asked_for_again() {
    let app = Arc::new(App { fails: 2, ..App::default() });
    let outbox = out_of_order(&app).open().await;
    for number in 1..=3 {
        outbox.enqueue(message(number, "a")).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(row(&outbox, 1).await.status, Status::Held, "it is being asked");
    pass(Duration::from_secs(300)).await;
    assert_eq!(app.asked.load(Ordering::SeqCst), 3);
    let stands = async |number: u32| row(&outbox, number).await.status;
    for number in 1..=3 {
        assert_eq!(stands(number).await, Status::Aborted);
    }
    assert_eq!((stands(101).await, stands(102).await), (Status::Done, Status::Done));
    assert_eq!(row(&outbox, 101).await.supersedes_id, Some(uuid(1)));
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_that_the_end_of_the_process_cut_off_is_asked_for_after_the_next_start() {
    let app = Arc::new(App::default());
    let world = out_of_order(&app);
    let before = world.open().await;
    before.enqueue(message(1, "a")).await.unwrap();
    before.enqueue(message(2, "a")).await.unwrap();
    let sending = before.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(row(&before, 1).await.status, Status::Held);
    // As far as the next process can tell, nobody was ever asked.
    let image = world.store.image().unwrap();
    drop((sending, before));
    let store = Arc::new(semel_delivery::sqlite::SqliteStore::of_image(&image).unwrap());
    let after = World { store, ..world }.open().await;
    let _sending = after.start();
    pass(Duration::from_secs(10)).await;
    assert_eq!(row(&after, 102).await.status, Status::Done);
    assert_eq!(row(&after, 2).await.status, Status::Aborted);
}

#[tokio::test(start_paused = true)]
async fn all_that_expired_in_one_go_is_one_notice_whoever_found_it() {
    for is_found_here in [true, false] {
        let app = Arc::new(App::default());
        let mut world = World::quick("walker", |_, _| answer(422, &[], r#"{"error":"STALE_ACTION"}"#));
        world.settings.hooks = Arc::clone(&app) as _;
        let outbox = world.open().await;
        for number in 1..=40 {
            outbox.enqueue(message(number, if number % 2 == 0 { "even" } else { "odd" })).await.unwrap();
        }
        if is_found_here {
            pass(8 * DAY).await;
        }
        let _sending = outbox.start();
        pass(Duration::from_secs(60)).await;
        assert_eq!(*app.expired.lock().unwrap(), [40]);
        assert_eq!(world.times().len(), if is_found_here { 0 } else { 40 });
        let (events, _) = outbox.events(0, 1000).await.unwrap();
        assert_eq!(events.iter().filter(|event| event.kind == "expired").count(), 40);
        assert_eq!(row(&outbox, 1).await.status, Status::Dead);
    }
}

/// A caller that goes away right after the commit: the message is sent at once, not when somebody looks for what was forgotten.
#[tokio::test]
async fn a_caller_that_goes_away_forgets_nothing_that_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (sent, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let settings = semel_delivery::Settings {
        transport: Arc::new(Tells(sent)),
        upstream: Some(semel_delivery::url::Target::absolute("http://server.test").unwrap()),
        ..semel_delivery::Settings::default()
    };
    let outbox = Outbox::open(folder.path().join("outbox.db"), settings).await.unwrap();
    let _sending = outbox.start();
    for number in 0..20 {
        let mut accepting = Box::pin(outbox.enqueue(message(number, &format!("lane-{number}"))));
        // The work is with the writer, which may be done with it already, and nobody waits for it.
        let _ = accepting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(accepting);
        let arrived = tokio::time::timeout(Duration::from_secs(30), arrived.recv()).await;
        assert_eq!(arrived.expect("it is sent soon"), Some(uuid(number)));
    }
}

struct Tells(tokio::sync::mpsc::UnboundedSender<String>);

impl semel_delivery::transport::Transport for Tells {
    fn send(&self, request: semel_delivery::transport::Outgoing) -> semel_delivery::transport::Sending<'_> {
        self.0.send(header(&request, "idempotency-key")).unwrap();
        Box::pin(async { answer(200, &[], "") })
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_of_something_in_between_is_nobodys_answer() {
    let world = World::quick("ietf", |_, count| match count {
        1 => answer(404, &[("content-type", "text/html; charset=utf-8")], "<h1>404</h1>"),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    assert_eq!((row(&outbox, 1).await.status, world.times().len()), (Status::Done, 2));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_tried_at_once_when_somebody_asks() {
    let world = World::quick("ietf", |_, count| match count {
        1 => answer(503, &[("retry-after", "3600")], ""),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    outbox.retry(row(&outbox, 1).await.id).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(row(&outbox, 1).await.status, Status::Done);
    assert!(outbox.retry(row(&outbox, 1).await.id).await.is_err(), "it is done");
}

/// Accepted with a clock that was 30 days behind; then the machine is started again with the right time.
async fn accepted_long_ago(profile: &str, server_seen: bool, is_vouched_for: bool) -> (World, Outbox) {
    let world = World::quick(profile, |request, _| match header(request, "x-lane").as_str() {
        "probe" => answer(200, &[("date", "Sun, 14 Feb 2027 08:00:00 GMT")], ""),
        _ => answer(422, &[], r#"{"error":"STALE_ACTION"}"#),
    });
    let before = world.open().await;
    let sending = before.start();
    if server_seen {
        before.enqueue(message(9, "probe")).await.unwrap();
        pass(Duration::from_secs(1)).await;
    }
    sending.stop(Duration::from_secs(1)).await;
    before.enqueue(message(1, "a")).await.unwrap();
    drop(before);
    world.clock.boot.fetch_add(1, Ordering::SeqCst);
    world.clock.is_synchronised.store(is_vouched_for, Ordering::SeqCst);
    *world.clock.wall_off_by.lock().unwrap() = 30 * DAY_MS;
    let outbox = world.open().await;
    (world, outbox)
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_wrong_when_a_message_was_accepted_does_not_expire_it_after_a_restart() {
    for (profile, server_seen, is_vouched_for) in [
        ("walker", false, false),
        ("walker", false, true),
        ("walker", true, false),
        ("ietf", true, false),
        ("ietf", true, true),
    ] {
        let (world, outbox) = accepted_long_ago(profile, server_seen, is_vouched_for).await;
        let sent = world.times().len();
        let _sending = outbox.start();
        pass(Duration::from_secs(60)).await;
        let said = format!("{profile}, server seen {server_seen}, vouched for {is_vouched_for}");
        assert_eq!(world.times().len(), sent + 1, "{said}: the server judges");
        assert_eq!(row(&outbox, 1).await.status, Status::Dead, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_age_that_nothing_speaks_against_counts_after_a_restart() {
    // No server was seen, and the server of this profile judges no ages: a time service says that a month has passed.
    let (world, outbox) = accepted_long_ago("ietf", false, true).await;
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    assert_eq!((world.times().len(), row(&outbox, 1).await.status), (0, Status::Dead));
    // The right clock all along, as a server has shown: it is a week and a day old, and nothing is sent.
    let world = World::quick("walker", |_, _| answer(200, &[("date", "Fri, 15 Jan 2027 08:00:00 GMT")], ""));
    let before = world.open().await;
    let sending = before.start();
    before.enqueue(message(9, "probe")).await.unwrap();
    pass(Duration::from_secs(1)).await;
    sending.stop(Duration::from_secs(1)).await;
    before.enqueue(message(1, "a")).await.unwrap();
    drop(before);
    world.clock.boot.fetch_add(1, Ordering::SeqCst);
    world.clock.is_synchronised.store(true, Ordering::SeqCst);
    pass(8 * DAY).await;
    let outbox = world.open().await;
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    assert_eq!((world.times().len(), row(&outbox, 1).await.status), (1, Status::Dead));
}

#[tokio::test(start_paused = true)]
async fn what_may_have_arrived_is_not_sent_again_by_a_clock_that_nothing_explains() {
    let world = World::quick("walker", |_, _| Sent::TimedOut("no answer came".to_owned()));
    let before = world.open().await;
    before.enqueue(message(1, "a")).await.unwrap();
    let sending = before.start();
    pass(Duration::from_secs(2)).await;
    sending.stop(Duration::from_secs(60)).await;
    drop(before);
    world.clock.boot.fetch_add(1, Ordering::SeqCst);
    *world.clock.wall_off_by.lock().unwrap() = 30 * DAY_MS;
    let outbox = world.open().await;
    let sent = world.times().len();
    let _sending = outbox.start();
    pass(Duration::from_secs(300)).await;
    assert_eq!((world.times().len(), row(&outbox, 1).await.status), (sent, Status::Pending));
}

/// A future that is never polled asks for nothing.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_begun_accepts_nothing() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    drop(outbox.enqueue(message(1, "a")));
    pass(Duration::from_secs(1)).await;
    assert!(matches!(outbox.receipt(&uuid(1)).await, Ok(None)));
    let mut accepting = Box::pin(outbox.enqueue(message(2, "a")));
    assert!(matches!(accepting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
}
