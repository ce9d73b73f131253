//! A process is killed at a step of the walk; the next one finds what it left. The child is this very test program, told
//! by a variable which world to live in and where to stop.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use semel_contract::identity::Identity;
use semel_contract::profile::{Profile, Rate, presets};
use semel_contract::record::Guarantee;
use semel_gate::{GateBuilder, GateLayer, Route, Step, on_step};
use semel_store::ClaimStore;
use semel_store::clock::{Clock, SystemClock};
use tower::ServiceExt;

/// Runs at each step.
pub(crate) const RUNS: u32 = 20;
/// What a child is told.
const CHILD: &str = "SEMEL_TEST_CRASH";

/// What a child is to do: which world, at which level, stopping where, under which key.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) world: String,
    pub(crate) guarantee: Guarantee,
    pub(crate) step: Step,
    pub(crate) key: String,
}

impl Task {
    /// The task of this process, if it is a child.
    pub(crate) fn of_this_process() -> Option<Self> {
        let text = std::env::var(CHILD).ok()?;
        let [world, guarantee, step, key] =
            text.split('|').collect::<Vec<_>>().try_into().expect("four words");
        let steps = Step::ALL.into_iter().chain(Step::OF_TRANSACTION);
        let step = steps.into_iter().find(|known| known.name() == step).expect("a step");
        Some(Self { world: world.to_owned(), guarantee: level(guarantee), step, key: key.to_owned() })
    }

    /// Starts a child on this task, waits until it stands at its step, and kills it.
    pub(crate) fn kill_at_step(&self, test: &str) {
        let text = [&self.world, self.guarantee.name(), self.step.name(), &self.key].join("|");
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(CHILD, text)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a child starts");
        let lines = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        let stopped = lines.map_while(Result::ok).any(|line| line.ends_with("standing at its step"));
        assert!(stopped, "the child never came to {:?}", self.step);
        child.kill().expect("it is still there");
        child.wait().expect("it ends");
    }

    /// Stands still for ever at the step, in whatever task takes it, while the rest of the process goes on.
    pub(crate) fn stop_at_step(&self) {
        let step = self.step;
        on_step(move |taken| {
            if taken == step {
                println!("standing at its step");
                loop {
                    std::thread::park();
                }
            }
        });
    }
}

fn level(name: &str) -> Guarantee {
    [Guarantee::Atomic, Guarantee::Fenced].into_iter().find(|level| level.name() == name).expect("a level")
}

/// A gate with every step in its walk.
pub(crate) fn gate(store: Arc<dyn ClaimStore>, guarantee: Guarantee) -> GateLayer {
    building(store, guarantee).build().expect("a safe gate")
}

/// The same, before it is built.
pub(crate) fn building(store: Arc<dyn ClaimStore>, guarantee: Guarantee) -> GateBuilder {
    let mut profile = Profile { guarantee, ..presets::walker() };
    profile.limits.request = Some(Rate { count: 1_000_000, window: Duration::from_secs(60) });
    profile.limits.admission = Some(Rate { count: 1_000_000, window: Duration::from_secs(60) });
    let route = Route::new("orders", "POST /orders").expect("a pattern").profile(profile);
    let identity = "trusted:X-User".parse::<Identity>().expect("an identity");
    GateLayer::builder(store).identity(identity).route(route)
}

/// Sends the request of a task. The times in it are those of the first attempt.
pub(crate) async fn send(app: Router, key: &str, generated_at: &str) -> (u16, String) {
    let body = format!(r#"{{"clientGeneratedAt":"{generated_at}"}}"#);
    let request = Request::post("/orders")
        .header("x-user", "alice")
        .header("idempotency-key", key)
        .body(Body::from(body));
    let response = app.oneshot(request.expect("a request")).await.expect("the gate answers");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// A time of generation that does not change between attempts.
pub(crate) fn generated_at() -> String {
    let now = SystemClock.read().wall.millis();
    semel_contract::time::Timestamp::from_millis(now - now % 86_400_000).to_string()
}

/// A fresh key.
pub(crate) fn key(run: u32, step: Step) -> String {
    format!("{:08x}-{:04x}-4000-8000-{:012x}", std::process::id(), step as u16, run)
}

/// What is known after the crash and after the retry.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) effects_after_crash: u32,
    pub(crate) has_record: bool,
    pub(crate) retry: (u16, String),
    pub(crate) effects_after_retry: u32,
}

/// Whether the promise was kept.
pub(crate) fn judge(task: &Task, found: &Found) {
    let context = format!("{task:?} {found:?}");
    assert!(found.effects_after_crash <= 1 && found.effects_after_retry <= 1, "a second effect: {context}");
    match task.guarantee {
        Guarantee::Atomic => {
            assert_eq!(
                found.effects_after_crash == 1,
                found.has_record,
                "an effect without its record, or the other way: {context}"
            );
            assert_eq!(
                (found.retry.0, found.effects_after_retry),
                (201, 1),
                "the retry is answered: {context}"
            );
        }
        Guarantee::Fenced => match found.retry.0 {
            201 => assert_eq!(found.effects_after_retry, 1, "{context}"),
            409 => assert!(found.retry.1.contains("OUTCOME_UNKNOWN"), "{context}"),
            _ => panic!("{context}"),
        },
        Guarantee::None => unreachable!("no task is without a guarantee"),
    }
}
