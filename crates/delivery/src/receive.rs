//! Receiving: subscribes to lines of meshes, keeps what comes in the inbox, and only then tells the broker. Owns which lines
//! are followed and how each of them fares; what a message is known by is the inbox's.
//!
//! 1. A message is in the inbox's file before its broker is told so, together with the place in its line. A crash between the
//!    two brings it again, and the inbox knows it.
//! 2. A line goes on after the last event that is kept. What its broker says cannot be had any more is kept as a gap, and shown.
//! 3. Lines do not wait for each other; a line that is refused or away is tried again for as long as it is wanted.
//! 4. An inbox that is full reads no further: what it does not take, the broker keeps.

mod event;
mod follow;
mod frames;
#[cfg(test)]
mod fuzz;
mod link;
mod meters;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_contract::time::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::follow::Follower;
pub use self::link::{HttpLink, Link, Linked, Stream, Unlinked};
use self::meters::Meters;
use crate::Invalid;
use crate::credentials::Place;
use crate::outbox::{Outbox, OutboxError};
use crate::url::Target;

/// Lines that one outbox follows.
pub const LINES_MAX: usize = 1000;

/// A line of a mesh, from its member's side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineName {
    /// A topic.
    Topic(String),
    /// What is sent to the member itself.
    Direct,
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineName::Topic(topic) => write!(f, "topic:{topic}"),
            LineName::Direct => f.write_str("direct"),
        }
    }
}

/// What is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Where the broker's members connect.
    pub broker: Target,
    /// The mesh.
    pub mesh: String,
    /// The line.
    pub line: LineName,
    /// Where the member's credential is found; read for each connection.
    pub credential: Option<Place>,
    /// Under which name it reads; without one, under one of this file's own.
    pub consumer: Option<String>,
    /// Authorities to trust instead of the web's, as a PEM file.
    pub ca: Option<PathBuf>,
}

/// How a line fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is being connected.
    Connecting,
    /// What is published comes as it is committed.
    Live,
    /// The broker refuses: the credential, the membership or the subscription.
    Refused,
    /// The broker cannot be reached, or broke off.
    Away,
    /// The inbox is full.
    Full,
    /// The inbox cannot be written.
    Failed,
}

impl State {
    /// Every state.
    pub const ALL: [State; 6] =
        [State::Connecting, State::Live, State::Refused, State::Away, State::Full, State::Failed];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Live => "live",
            State::Refused => "refused",
            State::Away => "away",
            State::Full => "full",
            State::Failed => "failed",
        }
    }
}

/// A line and how it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineView {
    /// The broker's origin.
    pub broker: String,
    /// The mesh.
    pub mesh: String,
    /// The line.
    pub line: LineName,
    /// How it fares.
    pub state: State,
    /// Why, where it is not live.
    pub why: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// A line that is followed.
struct Running {
    receive: Receive,
    view: Arc<Mutex<LineView>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The lines that an outbox follows. Dropped, it follows none.
pub struct Receiving {
    outbox: Outbox,
    own_name: String,
    meters: Arc<Meters>,
    running: Mutex<Vec<Running>>,
}

impl fmt::Debug for Receiving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiving").field("lines", &self.lines()).finish_non_exhaustive()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.lock().iter().for_each(|running| running.task.abort());
    }
}

impl Outbox {
    /// Begins to follow these lines.
    ///
    /// # Errors
    /// The store does not answer, or a line cannot be followed at all.
    pub async fn receive(&self, receives: Vec<Receive>) -> Result<Receiving, OutboxError> {
        let own_name = self.inbox().consumer().await?;
        let (meters, running) = (Arc::default(), Mutex::default());
        let receiving = Receiving { outbox: self.clone(), own_name, meters, running };
        receiving.replace(receives).map_err(|why| OutboxError::State(why.into()))?;
        Ok(receiving)
    }
}

/// Refuses lines that could not be told apart in one inbox.
///
/// # Errors
/// A line is there twice, a mesh's name stands for two brokers, or there are too many.
pub fn check(receives: &[Receive]) -> Result<(), Invalid> {
    if receives.len() > LINES_MAX {
        return Err(format!("an outbox follows at most {LINES_MAX} lines").into());
    }
    for (at, one) in receives.iter().enumerate() {
        for other in &receives[..at] {
            if one.mesh == other.mesh && one.broker.origin != other.broker.origin {
                let why = format!(
                    "mesh {:?} is received from two brokers, {} and {}: one inbox cannot tell them apart; use an outbox for each",
                    one.mesh, other.broker.origin, one.broker.origin
                );
                return Err(why.into());
            }
            if one.mesh == other.mesh && one.line == other.line {
                return Err(format!("{} of mesh {:?} is received twice", one.line, one.mesh).into());
            }
        }
    }
    Ok(())
}

impl Receiving {
    /// Follows these lines from now on, and no others. Those that stay as they are are not interrupted.
    ///
    /// # Errors
    /// A line cannot be followed at all; then nothing changes.
    pub fn replace(&self, receives: Vec<Receive>) -> Result<(), Invalid> {
        check(&receives)?;
        let mut links = Vec::new();
        let mut running = self.lock();
        for receive in &receives {
            let is_new = !running.iter().any(|running| running.receive == *receive);
            let link = |receive| HttpLink::new(receive, &self.own_name).map(|link| Arc::new(link) as _);
            links.push(is_new.then(|| link(receive)).transpose()?);
        }
        running.retain(|running| {
            let stays = receives.contains(&running.receive);
            if !stays {
                let _ = running.stop.send(true);
            }
            stays
        });
        for (receive, link) in receives.into_iter().zip(links) {
            if let Some(link) = link {
                running.push(self.begin(receive, link));
            }
        }
        Ok(())
    }

    /// Follows a line by another link than HTTP.
    pub fn follow(&self, receive: Receive, link: Arc<dyn Link>) {
        let begun = self.begin(receive, link);
        self.lock().push(begun);
    }

    fn begin(&self, receive: Receive, link: Arc<dyn Link>) -> Running {
        let (stop, stopped) = watch::channel(false);
        let view = Arc::new(Mutex::new(LineView {
            broker: receive.broker.origin.clone(),
            mesh: receive.mesh.clone(),
            line: receive.line.clone(),
            state: State::Connecting,
            why: None,
            since: self.outbox.now(),
        }));
        let follower = Follower {
            outbox: self.outbox.clone(),
            inbox: self.outbox.inbox(),
            link,
            mesh: receive.mesh.clone(),
            line: receive.line.to_string(),
            view: Arc::clone(&view),
            meters: Arc::clone(&self.meters),
        };
        let task = tokio::spawn(follower.run(stopped));
        Running { receive, view, stop, task }
    }

    /// How the lines fare.
    pub fn lines(&self) -> Vec<LineView> {
        let view = |running: &Running| running.view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.lock().iter().map(view).collect()
    }

    /// Stops: what has come is kept, and what is kept is told to its broker where that is quick.
    pub async fn stop(&self, within: Duration) {
        let stopping = std::mem::take(&mut *self.lock());
        stopping.iter().for_each(|running| {
            let _ = running.stop.send(true);
        });
        let deadline = tokio::time::Instant::now() + within;
        for mut running in stopping {
            if tokio::time::timeout_at(deadline, &mut running.task).await.is_err() {
                running.task.abort();
            }
        }
    }

    /// What is counted, in Prometheus' text form.
    pub fn metrics(&self) -> String {
        self.meters.text(&self.lines())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(broker: &str, mesh: &str, line: LineName) -> Receive {
        let broker = Target::absolute(broker).unwrap();
        Receive { broker, mesh: mesh.to_owned(), line, credential: None, consumer: None, ca: None }
    }

    #[test]
    fn lines_that_one_inbox_cannot_tell_apart_are_refused() {
        let news = || LineName::Topic("news".to_owned());
        let one = receive("http://a:1", "team", news());
        assert_eq!(check(&[one.clone(), receive("http://a:1", "team", LineName::Direct)]), Ok(()));
        assert_eq!(check(&[one.clone(), receive("http://b:1", "other", news())]), Ok(()));
        let twice = check(&[one.clone(), receive("http://a:1/", "team", news())]).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
        let two = check(&[one, receive("http://b:1", "team", LineName::Direct)]).unwrap_err();
        assert!(two.to_string().contains("two brokers"), "{two}");
    }
}
