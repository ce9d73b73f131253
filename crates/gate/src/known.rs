//! What is said of a key that is already known: wait for it, replay it, ask about it, refuse it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum_core::body::Body;
use http::Response;
use semel_contract::age;
use semel_contract::decide::{self, Decision, Standing, decide};
use semel_contract::outcome::Told;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{Hashes, InFlight};
use semel_contract::time::Timestamp;
use semel_store::{Answer, Entry, Resolution, Resolved};

use crate::answer;
use crate::context::Context;
use crate::measure::{self, Call};
use crate::pipeline::Known;
use crate::probe::Finding;
use crate::problems::store_away;

/// The first pause between two looks at a record in flight; hints usually come sooner.
const POLL_FIRST: Duration = Duration::from_millis(100);
/// The longest such pause.
const POLL_LONGEST: Duration = Duration::from_millis(1600);

/// The first pause between two looks at a key that a handler's transaction holds; it doubles.
const POLL_ENTERED: Duration = Duration::from_millis(10);
/// The longest such pause.
const POLL_ENTERED_LONGEST: Duration = Duration::from_millis(250);

impl Context {
    pub(crate) fn refusal(&self, kind: Kind, entry: Option<&Entry>) -> Problem {
        let arrival = &self.arrival;
        let fingerprint = arrival.fingerprints.first().map(|print| &print.bytes);
        let received = Hashes { fingerprint, payload: arrival.payload_hash.as_ref() };
        let problem = answer::refusal(&self.route.profile, kind, entry, received);
        match (kind, self.route.profile.in_flight) {
            (Kind::InFlight, InFlight::Reject { retry_after }) => problem.retry_after(retry_after),
            (Kind::InFlight, InFlight::Wait { .. } | InFlight::Accepted) => {
                problem.retry_after(Duration::from_secs(1))
            }
            _ => problem,
        }
    }

    pub(crate) async fn look_up(&self) -> Result<Known, Problem> {
        let asked = self.shared.store.look_up(&self.arrival.id);
        let found = self.shared.meters.time(Call::LookUp, asked).await;
        let (entry, now) = found.map_err(|error| store_away(&error))?;
        Ok((entry.map(Box::new), now))
    }

    /// The same where that is no more than a look into memory or a file. What fails is asked again by whoever tells of it.
    pub(crate) async fn look_up_if_local(&self) -> Option<Known> {
        if !self.shared.store.lookup_is_local() {
            return None;
        }
        let asked = self.shared.store.look_up(&self.arrival.id);
        let (entry, now) = self.shared.meters.time(Call::LookUp, asked).await.ok()?;
        Some((entry.map(Box::new), now))
    }

    pub(crate) fn replay(&self, entry: Option<&Entry>) -> Response<Body> {
        self.route.meters.replayed(&self.route.name);
        if let Some(entry) = entry {
            self.shared.store.hints().replays().add(entry.record.fence.number);
        }
        let empty =
            Answer { status: 200, headers: [].into(), body: bytes::Bytes::new(), outcome_unknown: false };
        let kept = entry.and_then(|entry| entry.answer.as_ref()).unwrap_or(&empty);
        if kept.outcome_unknown && !self.route.has_replayed_error.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = self.route.name,
                status = kept.status,
                "a server error is replayed, since whether it took effect is not known; if the service rolls back on errors, \
                 say on_error = \"release\"; if it knows better, let it answer with Semel-Outcome: applied or not-applied"
            );
        }
        let mut response = answer::replayed(&self.route.profile, kept);
        // The level of the claim, which may be another than the route has today.
        let guarantee = entry.map_or(self.route.profile.guarantee, |entry| entry.record.guarantee);
        answer::mark(response.headers_mut(), &self.route.profile, guarantee);
        response
    }

    pub(crate) fn accepted(&self) -> Response<Body> {
        let body = serde_json::json!({"status": self.route.profile.state_names.claimed});
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = http::StatusCode::ACCEPTED;
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        // It is not an acknowledgement: the first attempt may still end without an effect. A status alone would read like one.
        response.headers_mut().insert(answer::OUTCOME, http::HeaderValue::from_static(Told::PENDING));
        response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
        response
    }

    /// Waits until the record may have changed, and looks again.
    pub(crate) async fn wait(&self) -> Result<Known, Problem> {
        let InFlight::Wait { deadline } = self.route.profile.in_flight else {
            return Err(Problem::from(Kind::InFlight).retry_after(Duration::from_secs(1)));
        };
        let hash = self.arrival.id.hash();
        let hints = self.shared.store.hints();
        let too_many = || Problem::from(Kind::TooManyWaiters).retry_after(Duration::from_secs(1));
        let _permit = self.shared.waiters.try_acquire().map_err(|_| too_many())?;
        let listener = hints.listen(hash);
        if hints.waiting(hash) > self.shared.max_waiters_per_key {
            return Err(too_many());
        }
        measure::waiting(&self.route.name);
        let until = self.arrived + deadline;
        let mut pause = POLL_FIRST;
        loop {
            let next = listener.next();
            let (entry, now) = self.look_up().await?;
            let in_flight = entry
                .as_ref()
                .is_some_and(|entry| Standing::of(Some(&entry.record), now) == Standing::Claimed);
            if !in_flight {
                return Ok((entry, now));
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => return Err(self.refusal(Kind::InFlight, entry.as_deref())),
                () = next => {}
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(POLL_LONGEST),
            }
        }
    }

    /// What is to be done, as far as is known now.
    pub(crate) fn decision(&self, (entry, now): &Known) -> Result<Decision, Problem> {
        let (profile, arrival) = (&self.route.profile, &self.arrival);
        age::refuse_future(profile, arrival.first_sent, *now)?;
        // A fingerprint that was keyed with a secret which this replica does not have proves nothing either way.
        if entry.as_deref().is_some_and(|entry| arrival.cannot_compare(&entry.record)) {
            return Err(self.refusal(Kind::OutcomeUnknown, entry.as_deref()));
        }
        let arrival = decide::Arrival { fingerprints: &arrival.fingerprints, first_sent: arrival.first_sent };
        Ok(decide(profile, &arrival, entry.as_ref().map(|entry| &entry.record), *now))
    }

    /// Waits while a handler's transaction holds the key: there is no record to look at, and what ends it may come without a
    /// hint. The pause begins with nothing. An answer where the route says that nobody waits.
    pub(crate) async fn wait_for_entered(
        &self,
        pause: &mut Duration,
    ) -> Result<Option<Response<Body>>, Problem> {
        let deadline = match self.route.profile.in_flight {
            InFlight::Wait { deadline } => deadline,
            InFlight::Reject { .. } => return Err(self.refusal(Kind::InFlight, None)),
            InFlight::Accepted => return Ok(Some(self.accepted())),
        };
        let hash = self.arrival.id.hash();
        let hints = self.shared.store.hints();
        let too_many = || Problem::from(Kind::TooManyWaiters).retry_after(Duration::from_secs(1));
        let _permit = self.shared.waiters.try_acquire().map_err(|_| too_many())?;
        let listener = hints.listen(hash);
        if hints.waiting(hash) > self.shared.max_waiters_per_key {
            return Err(too_many());
        }
        measure::waiting(&self.route.name);
        *pause = (*pause * 2).clamp(POLL_ENTERED, POLL_ENTERED_LONGEST);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(self.arrived + deadline) => {
                return Err(self.refusal(Kind::InFlight, None));
            }
            () = listener.next() => {}
            () = tokio::time::sleep(*pause) => {}
        }
        Ok(None)
    }

    /// Asks what became of it, and writes down what is found.
    pub(crate) async fn probe(&self, entry: Option<Box<Entry>>, looked_at: Timestamp) -> Result<(), Problem> {
        let unknown = |entry: Option<&Entry>| self.refusal(Kind::OutcomeUnknown, entry);
        let (Some(probe), Some(entry)) = (&self.shared.probe, entry) else { return Err(unknown(None)) };
        let resolution = match probe.ask_at(&entry, &self.arrival.params).await {
            Finding::Applied(answer) => Resolution::Applied(answer),
            // What was looked at before the window's end says nothing about what arrived after the look.
            Finding::NotApplied if looked_at < entry.late_until => {
                return Err(unknown(Some(&entry)).with("notBefore", entry.late_until.to_string()));
            }
            Finding::NotApplied => Resolution::NotApplied,
            Finding::Unknown => return Err(unknown(Some(&entry))),
        };
        let lifetime = self.resolving_lifetime().await?;
        let resolved = self
            .shared
            .store
            .resolve(&entry.id, entry.record.fence, resolution, &lifetime, "probe", "asked the upstream")
            .await;
        match resolved.map_err(|error| store_away(&error))? {
            Resolved::Done | Resolved::NotUnknown => Ok(()),
            Resolved::TooEarly { until } => {
                let problem = unknown(Some(&entry));
                Err(problem.with("notBefore", until.to_string()))
            }
        }
    }
}
