//! Order, holds, expiry, rebuilds: what happens to a lane, by a clock that tests move.

mod scripted;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use scripted::{World, answer, header, message, pass, uuid};
use semel_delivery::credentials::{Credential, Wallet};
use semel_delivery::hooks::{Hooks, Rebuilding, Rebuilt};
use semel_delivery::transport::Sent;
use semel_delivery::{Enqueue, HeadPolicy, Outbox, Request, Row, Status};

const DAY: Duration = Duration::from_secs(86_400);

async fn status(outbox: &Outbox, number: u32) -> Status {
    outbox.receipt(&uuid(number)).await.unwrap().unwrap().status
}

async fn kinds(outbox: &Outbox) -> Vec<String> {
    let (events, _) = outbox.events(0, 1000).await.unwrap();
    events.into_iter().map(|event| event.kind).filter(|kind| kind != "queued").collect()
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_sent_in_order_one_at_a_time_and_lanes_do_not_wait_for_each_other() {
    // The scripted server refuses two of one lane at once.
    let world = World::new("ietf", |_, _| (Duration::from_millis(100), answer(200, &[], "")));
    let outbox = world.open().await;
    for number in 0..40 {
        outbox.enqueue(message(number, if number % 2 == 0 { "even" } else { "odd" })).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_millis(2500)).await;
    let seen = world.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 40, "twenty in each lane, a tenth of a second each, side by side");
    for lane in ["even", "odd"] {
        let keys: Vec<String> = seen
            .iter()
            .filter(|(_, request)| header(request, "x-lane") == lane)
            .map(|(_, request)| header(request, "idempotency-key"))
            .collect();
        assert!(keys.is_sorted() && keys.len() == 20, "{keys:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn when_the_link_is_lost_the_rest_waits_in_order_under_the_same_keys() {
    let world = World::quick("walker", |_, count| match count {
        1 | 2 | 4.. => answer(200, &[], ""),
        _ => Sent::NotSent("no network".to_owned()),
    });
    let outbox = world.open().await;
    for number in 1..=5 {
        outbox.enqueue(message(number, "walker")).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    let waiting: Vec<Status> =
        [status(&outbox, 3).await, status(&outbox, 4).await, status(&outbox, 5).await].to_vec();
    assert_eq!(waiting, [Status::Pending; 3]);
    assert_eq!(outbox.receipt(&uuid(3)).await.unwrap().unwrap().progress.failures, 1);
    pass(Duration::from_secs(10)).await;
    assert_eq!(world.keys("idempotency-key"), [1, 2, 3, 3, 4, 5].map(uuid));
}

#[tokio::test(start_paused = true)]
async fn a_refused_credential_holds_its_principal_until_a_fresh_one_comes() {
    let mut world = World::quick("ietf", |request, _| match header(request, "authorization").as_str() {
        "Bearer good" => answer(200, &[], ""),
        _ if header(request, "x-lane") == "bob" => answer(200, &[], ""),
        _ => answer(401, &[], ""),
    });
    let wallet = Arc::new(Wallet::default());
    let give = |token: &str| {
        let headers = vec![("Authorization".to_owned(), format!("Bearer {token}"))];
        wallet.give("alice", "http://server.test", Credential { headers });
    };
    give("old");
    world.settings.credentials = Arc::clone(&wallet) as _;
    let outbox = world.open().await;
    for (number, principal) in [(1, "alice"), (2, "alice"), (3, "bob")] {
        let lane = if number == 2 { "alice-too" } else { principal };
        let enqueue = Enqueue { principal: Some(principal.to_owned()), ..message(number, lane) };
        outbox.enqueue(enqueue).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(3600)).await;
    assert_eq!(status(&outbox, 3).await, Status::Done);
    assert_eq!(status(&outbox, 1).await, Status::Held);
    assert!(world.times().len() <= 3, "a refused credential is not tried again: {:?}", world.times());
    // The file or command gives another one, and the engine sees it by itself.
    give("good");
    pass(Duration::from_secs(10)).await;
    assert_eq!((status(&outbox, 1).await, status(&outbox, 2).await), (Status::Done, Status::Done));
    let kinds = kinds(&outbox).await;
    assert!(kinds.contains(&"held".to_owned()) && kinds.contains(&"released".to_owned()), "{kinds:?}");
    for text in [format!("{:?}", wallet), format!("{:?}", outbox.list(Default::default()).await.unwrap())] {
        assert!(!text.contains("Bearer"), "credentials are not kept");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_given_up_when_it_is_too_old() {
    let world = World::quick("ietf", |request, _| match header(request, "x-lane").as_str() {
        "a" => answer(401, &[], ""),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(22 * 3600)).await;
    assert_eq!(status(&outbox, 1).await, Status::Held);
    pass(Duration::from_secs(2 * 3600)).await;
    assert_eq!(status(&outbox, 1).await, Status::Dead);
    assert_eq!(kinds(&outbox).await, ["held", "expired", "expiry"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_head_is_skipped_or_blocks_its_lane() {
    for head in [HeadPolicy::Skip, HeadPolicy::Block] {
        let mut world = World::quick("ietf", |_, count| answer(if count == 1 { 400 } else { 200 }, &[], ""));
        world.settings.head = head;
        let outbox = world.open().await;
        for number in 1..=2 {
            outbox.enqueue(message(number, "a")).await.unwrap();
        }
        let _sending = outbox.start();
        pass(Duration::from_secs(60)).await;
        assert_eq!(status(&outbox, 1).await, Status::Dead);
        let expected = if head == HeadPolicy::Skip { Status::Done } else { Status::Pending };
        assert_eq!(status(&outbox, 2).await, expected, "{head:?}");
        outbox.resume("a").await.unwrap();
        pass(Duration::from_secs(1)).await;
        assert_eq!(status(&outbox, 2).await, Status::Done, "{head:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_lane_waits() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    outbox.pause("a").await.unwrap();
    let _sending = outbox.start();
    outbox.enqueue(message(1, "a")).await.unwrap();
    pass(Duration::from_secs(60)).await;
    assert_eq!(world.times().len(), 0);
    outbox.resume("a").await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(status(&outbox, 1).await, Status::Done);
}

#[derive(Default)]
struct Notices {
    expired: Mutex<Vec<usize>>,
    rebuild: Mutex<Vec<(i64, usize)>>,
}

impl Hooks for Notices {
    fn expired(&self, messages: &[Row]) {
        self.expired.lock().unwrap().push(messages.len());
    }

    fn rebuild<'a>(&'a self, message: &'a Row, behind: &'a [Row]) -> Rebuilding<'a> {
        self.rebuild.lock().unwrap().push((message.id, behind.len()));
        let with = Enqueue {
            client_message_id: Some(uuid(100)),
            lane: Some(message.lane.clone()),
            ..Enqueue::new(Request::json("POST", "/corrected", "{}"))
        };
        let drop = behind.iter().map(|row| row.id).collect();
        Box::pin(async move {
            // It asks the server how things stand.
            tokio::time::sleep(Duration::from_secs(2)).await;
            Rebuilt::Replace { drop, with: vec![with] }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_a_week_is_dropped_without_a_request_and_with_one_notice() {
    let mut world = World::quick("walker", |_, _| answer(200, &[], ""));
    let notices = Arc::new(Notices::default());
    world.settings.hooks = Arc::clone(&notices) as _;
    let outbox = world.open().await;
    for number in 1..=3 {
        outbox.enqueue(message(number, "walker")).await.unwrap();
    }
    pass(8 * DAY).await;
    outbox.enqueue(message(4, "walker")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.keys("idempotency-key"), [uuid(4)]);
    assert_eq!(*notices.expired.lock().unwrap(), [3]);
    assert_eq!(kinds(&outbox).await, ["expired", "expired", "expired", "done", "expiry"]);
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts, row.first_attempt_at), (Status::Dead, 0, None));
    assert!(!row.is_possibly_delivered());
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_with_an_ambiguous_attempt_is_possibly_delivered() {
    let world = World::quick("mesh", |_, _| Sent::TimedOut("late".to_owned()));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(7 * DAY).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Dead);
    assert!(row.is_possibly_delivered());
    let last = *world.times().last().unwrap();
    assert!(last < 6 * 86_400_000, "nothing is sent after six days: {last}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_sooner_shortens_the_age() {
    let mut world = World::quick("ietf", |_, _| answer(503, &[("semel-retention", "3600")], ""));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(DAY).await;
    assert_eq!(status(&outbox, 1).await, Status::Dead);
    assert!(*world.times().last().unwrap() < 3_600_000);
    assert!(kinds(&outbox).await.contains(&"retention".to_owned()));
    // The next start knows it: an age that nobody chose is shortened again, one that somebody chose is refused.
    world.open().await;
    world.settings.max_age_is_chosen = true;
    let refused =
        Outbox::with_store(Arc::clone(&world.store) as _, world.settings.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("max_age"), "{refused}");
}

/// The presets of gate and outbox fit each other: what the gate of a profile announces does not shorten its outbox.
#[tokio::test(start_paused = true)]
async fn a_gate_of_the_same_profile_does_not_shorten_the_age() {
    for profile in ["walker", "mesh", "ietf"] {
        let preset = semel_contract::profile::presets::preset(profile).unwrap();
        let announced = preset.lifetime.retry_window.as_secs().to_string();
        let max_age = u64::try_from(preset.schedule.max_age.unwrap().as_millis()).unwrap();
        let mut world =
            World::quick(profile, move |_, _| answer(503, &[("semel-retention", &announced)], ""));
        world.settings.max_age_is_chosen = true;
        let outbox = world.open().await;
        outbox.enqueue(message(1, "a")).await.unwrap();
        let _sending = outbox.start();
        pass(9 * DAY).await;
        assert!(!status(&outbox, 1).await.is_live(), "{profile}");
        let last = *world.times().last().unwrap();
        assert!((max_age - 1_000_000..=max_age).contains(&last), "{profile}: {last} of {max_age}");
        world.open().await;
    }
}

/// Refusals that are final are asked for once, also in the forms that have no code in their body.
#[tokio::test(start_paused = true)]
async fn a_spent_key_is_not_asked_for_again() {
    use semel_contract::problem::{Kind, Problem};
    for (profile, preset) in semel_contract::profile::presets::PRESETS {
        for kind in [Kind::AnswerNotKept, Kind::KeySealed, Kind::CredentialChanged] {
            let rendered = preset().wire.render(&Problem::from(kind), None, "r-1");
            let world = World::quick(profile, move |_, _| {
                let headers: Vec<(&str, &str)> =
                    rendered.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                answer(rendered.status, &headers, &rendered.body)
            });
            let outbox = world.open().await;
            outbox.enqueue(message(1, "a")).await.unwrap();
            let _sending = outbox.start();
            pass(Duration::from_secs(600)).await;
            let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
            assert_eq!(
                (row.status, row.attempts),
                (Status::Dead, 1),
                "{profile} {kind:?}: {:?}",
                row.last_error
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_without_a_code_is_final_where_the_server_says_so() {
    let world =
        World::quick("feed", |_, _| answer(409, &[("X-Should-Retry", "false")], r#"{"error":"No."}"#));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Dead, 1));
}

#[tokio::test(start_paused = true)]
async fn what_a_member_may_not_do_does_not_hold_its_other_messages() {
    let world = World::quick("mesh", |request, _| match request.target.path.as_str() {
        "/forbidden" => answer(403, &[], r#"{"error":"not_subscribed"}"#),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    let mut forbidden = message(1, "a");
    forbidden.request.url = "/forbidden".to_owned();
    outbox.enqueue(forbidden).await.unwrap();
    outbox.enqueue(message(2, "b")).await.unwrap();
    outbox.enqueue(message(3, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(status(&outbox, 2).await, Status::Done);
    pass(Duration::from_secs(600)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Dead, 4), "{:?}", row.last_error);
    assert_eq!(status(&outbox, 3).await, Status::Done);
}

/// Collects what is logged as an error.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Errors {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}={value:?}"));
    }
}

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("semel_delivery") && *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A conflict of keys is a bug of somebody's: it is dropped, and said as loudly as a crash.
#[tokio::test(start_paused = true)]
async fn a_conflict_of_keys_is_dropped_and_said_loudly() {
    let errors = Errors::default();
    // For the whole program: what one thread alone listens to is missed when another thread meets the same line first.
    tracing::subscriber::set_global_default(errors.clone()).expect("no other test here listens");
    let world = World::quick("walker", |_, count| match count {
        1 => answer(409, &[], r#"{"error":"IDEMPOTENCY_CONFLICT"}"#),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    outbox.enqueue(message(2, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(10)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Dead, 1));
    assert_eq!(status(&outbox, 2).await, Status::Done, "the lane goes on");
    assert_eq!(kinds(&outbox).await, ["dropped", "done"]);
    let said = errors.0.lock().unwrap().join(" ");
    assert!(said.contains("dropped") && said.contains("IDEMPOTENCY_CONFLICT"), "{said}");
}

/// Two origins, one principal: the one that refuses the credential does not stop messages to the other.
#[tokio::test(start_paused = true)]
async fn a_refused_credential_holds_messages_to_its_origin_alone() {
    let mut world = World::quick("ietf", |request, _| {
        let is_good = header(request, "authorization") == "Bearer good";
        match request.target.origin.as_str() {
            "http://strict.test" if !is_good => answer(401, &[], ""),
            _ => answer(200, &[], ""),
        }
    });
    let wallet = Arc::new(Wallet::default());
    wallet.give("default", "http://strict.test", Credential::line("authorization", "old"));
    world.settings.credentials = Arc::clone(&wallet) as _;
    let outbox = world.open().await;
    let to = |number: u32, lane: &str, origin: &str| {
        let mut enqueue = message(number, lane);
        enqueue.request.url = format!("{origin}/x");
        enqueue
    };
    let _sending = outbox.start();
    outbox.enqueue(to(1, "a", "http://strict.test")).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(status(&outbox, 1).await, Status::Held);
    outbox.enqueue(to(2, "b", "http://mild.test")).await.unwrap();
    outbox.enqueue(to(3, "c", "http://strict.test")).await.unwrap();
    outbox.enqueue(to(4, "c", "http://mild.test")).await.unwrap();
    pass(Duration::from_secs(10)).await;
    assert_eq!(status(&outbox, 2).await, Status::Done, "another origin");
    assert_eq!(status(&outbox, 3).await, Status::Held, "the same origin and credential");
    assert_eq!(world.times().len(), 2, "the refused credential is not shown again");
    let rows =
        [outbox.receipt(&uuid(3)).await.unwrap().unwrap(), outbox.receipt(&uuid(4)).await.unwrap().unwrap()];
    assert_eq!((rows[0].attempts, rows[0].first_attempt_at), (0, None), "nothing was sent");
    let said = outbox.waits_for(&rows).await.unwrap();
    let said: Vec<&str> = said.iter().map(|said| said.as_deref().unwrap()).collect();
    assert!(
        said[0].contains("a fresh credential of default") && said[0].contains("http://strict.test"),
        "{said:?}"
    );
    assert!(said[1].contains(&format!("message {} before it", uuid(3))), "{said:?}");
    // A person may try again with the same one.
    outbox.release("default", None).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!((status(&outbox, 1).await, outbox.holds().len()), (Status::Held, 1), "it is still refused");
    wallet.give("default", "http://strict.test", Credential::line("authorization", "good"));
    pass(Duration::from_secs(10)).await;
    for number in 1..=4 {
        assert_eq!(status(&outbox, number).await, Status::Done, "{number}");
    }
}

/// Lanes are by principal, not by what is asked for: actions of several kinds stay in their order.
#[tokio::test(start_paused = true)]
async fn order_holds_across_kinds_of_actions() {
    let world = World::new("walker", |_, count| match count {
        2 => (Duration::from_millis(50), Sent::NotSent("no network".to_owned())),
        _ => (Duration::from_millis(50), answer(200, &[], "")),
    });
    let outbox = world.open().await;
    let paths: Vec<String> = (0..12)
        .map(|number| format!("/{}/{number}", ["allocate", "advance", "complete"][number % 3]))
        .collect();
    for (number, path) in (0_u32..).zip(&paths) {
        let mut enqueue = Enqueue::new(Request::json(["POST", "PUT"][number as usize % 2], path, "{}"));
        enqueue.client_message_id = Some(uuid(number));
        outbox.enqueue(enqueue).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    let mut seen: Vec<String> =
        world.seen.lock().unwrap().iter().map(|(_, request)| request.target.path.clone()).collect();
    seen.dedup();
    assert_eq!(seen, paths, "one lane, in the order in which they came");
}

#[tokio::test(start_paused = true)]
async fn a_lane_out_of_order_is_rebuilt_by_the_application() {
    let mut world = World::quick("walker", |request, _| match request.target.path.as_str() {
        "/corrected" => answer(200, &[], ""),
        _ => answer(422, &[], r#"{"error":"STEP_OUT_OF_ORDER"}"#),
    });
    let notices = Arc::new(Notices::default());
    world.settings.hooks = Arc::clone(&notices) as _;
    let outbox = world.open().await;
    for number in 3..=4 {
        outbox.enqueue(message(number, "walker")).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(3)).await;
    assert_eq!(*notices.rebuild.lock().unwrap(), [(1, 1)]);
    assert_eq!((status(&outbox, 3).await, status(&outbox, 4).await), (Status::Aborted, Status::Aborted));
    let old = outbox.receipt(&uuid(3)).await.unwrap().unwrap();
    assert_eq!(old.superseded_by_id, Some(uuid(100)), "a new key, linked to the old row");
    assert_eq!(status(&outbox, 100).await, Status::Done);
    assert_eq!(world.times().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_changes_neither_order_nor_delays() {
    let world = World::quick("feed", |_, count| answer(if count <= 3 { 500 } else { 200 }, &[], ""));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_millis(1500)).await;
    for off_by in [-30, 30] {
        *world.clock.wall_off_by.lock().unwrap() = off_by * 86_400_000;
        pass(Duration::from_millis(1000)).await;
    }
    pass(Duration::from_secs(10)).await;
    assert_eq!(world.pauses(), [1000, 2000, 4000]);
    assert_eq!(status(&outbox, 1).await, Status::Done);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_wrong_at_enqueue_does_not_make_a_message_old() {
    let world = World::quick("walker", |_, _| answer(422, &[], r#"{"error":"STALE_ACTION"}"#));
    *world.clock.wall_off_by.lock().unwrap() = -30 * 86_400_000;
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    *world.clock.wall_off_by.lock().unwrap() = 0;
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.times().len(), 1, "it is sent, and the server judges");
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert!(row.last_error.unwrap().starts_with("stale-action"));
    assert_eq!(kinds(&outbox).await, ["expired", "expiry"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_with_the_clock_thirty_days_back_loses_nothing_and_waits_for_nothing() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let before = world.open().await;
    before.enqueue(message(1, "a")).await.unwrap();
    drop(before);
    *world.clock.wall_off_by.lock().unwrap() = -30 * 86_400_000;
    let outbox = world.open().await;
    outbox.enqueue(message(2, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.keys("idempotency-key"), [uuid(1), uuid(2)]);
    let (first, second) = (outbox.receipt(&uuid(1)).await.unwrap(), outbox.receipt(&uuid(2)).await.unwrap());
    assert!(second.unwrap().enqueued_at >= first.unwrap().enqueued_at, "time does not go back");
}

#[tokio::test(start_paused = true)]
async fn a_servers_date_corrects_what_it_is_told_and_what_is_too_old() {
    // The local clock is two days ahead, and the server says so.
    let date = "Fri, 15 Jan 2027 08:00:00 GMT";
    let world = World::quick("walker", move |_, count| match count {
        1 => answer(500, &[("date", date)], ""),
        _ => answer(200, &[("date", date)], ""),
    });
    *world.clock.wall_off_by.lock().unwrap() = 2 * 86_400_000;
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(10)).await;
    let first_sent = world.keys("idempotency-first-sent");
    assert_eq!(first_sent.len(), 2);
    assert!(
        first_sent[0].starts_with("2027-01-17T") && first_sent[1].starts_with("2027-01-15T08:00"),
        "{first_sent:?}"
    );
}
