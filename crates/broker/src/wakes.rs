//! Brokers that share a database wake each other: after its commits a broker names the lines that have new messages, and the
//! readers of the others look at once. Only a hint: what is lost here is found by looking again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_delivery::Entropy;
use semel_delivery::relay::store::sql::{Database, Heard};
use tokio::sync::Notify;

use crate::live::Hub;

/// Where brokers tell each other.
const CHANNEL: &str = "semel_broker";
/// Lines that are named together: with at most 20 characters each they are well below the 8000 bytes of a notification.
const LINES_TOGETHER: usize = 200;
/// Lines that wait to be named; of more the others learn by looking.
const LINES_MAX: usize = 10_000;
/// The pause between two words: what is committed meanwhile goes into the next. The first is said at once.
const PAUSE: Duration = Duration::from_millis(5);

/// What a broker has to tell the others.
pub(crate) struct Wakes {
    /// This broker, which knows of its own commits.
    own: String,
    lines: Mutex<BTreeSet<i64>>,
    came: Notify,
}

impl Wakes {
    pub(crate) fn new(entropy: &Entropy) -> Self {
        Self { own: format!("{:032x}", entropy.bits()), lines: Mutex::default(), came: Notify::new() }
    }

    /// These lines have new messages, which are committed.
    pub(crate) fn announce(&self, lines: &[i64]) {
        let mut waiting = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let room = LINES_MAX.saturating_sub(waiting.len());
        waiting.extend(lines.iter().take(room));
        drop(waiting);
        self.came.notify_one();
    }

    /// Tells the others, for ever.
    pub(crate) async fn tell(&self, db: &dyn Database) {
        loop {
            self.came.notified().await;
            let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
            let lines: Vec<i64> = lines.into_iter().collect();
            for together in lines.chunks(LINES_TOGETHER) {
                // What cannot be said now is found by looking.
                let _ = db.say(CHANNEL, &written(&self.own, together)).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Hears the others, for ever, and wakes the readers.
    pub(crate) async fn hear(&self, db: &dyn Database, hub: Arc<Hub>) {
        let own = self.own.clone();
        let heard: Heard = Arc::new(move |text| match text {
            "" => hub.wake_all(),
            text => lines_of(text, &own).into_iter().for_each(|line| hub.wake(line)),
        });
        db.listen(CHANNEL, heard).await;
    }
}

fn written(own: &str, lines: &[i64]) -> String {
    let lines: Vec<String> = lines.iter().map(i64::to_string).collect();
    format!("{own} {}", lines.join(","))
}

/// The lines that another broker names; what cannot be read is passed over, since anybody may notify.
fn lines_of(text: &str, own: &str) -> Vec<i64> {
    match text.split_once(' ') {
        Some((by, lines)) if by != own => lines.split(',').filter_map(|line| line.parse().ok()).collect(),
        Some(_) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_a_brokers_own_word_and_rubbish_are_passed_over() {
        assert_eq!(lines_of(&written("a", &[1, i64::MAX]), "b"), [1, i64::MAX]);
        assert_eq!(lines_of(&written("a", &[1]), "a"), [] as [i64; 0]);
        assert_eq!(lines_of("rubbish", "a"), [] as [i64; 0]);
        assert_eq!(lines_of("b x,2,", "a"), [2]);
        let own = format!("{:032x}", u128::MAX);
        assert!(written(&own, &[i64::MIN; LINES_TOGETHER]).len() < 8000);
    }
}
