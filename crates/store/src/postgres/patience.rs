//! How long an unsure commit is looked into. The write is made again, which waits for the orphaned session; only an answer
//! of the store tells what became of the first, and when none comes in time it is unknown.

use std::time::Duration;

use tokio::time::Instant;

use super::link::PgFailure;
use crate::claims::StoreError;

/// How long an unsure commit is looked into before the caller is told that it is unknown.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks.
const RESOLVE_PAUSE: Duration = Duration::from_millis(50);

/// What is known of earlier attempts at one write.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    unsure: Option<String>,
    until: Instant,
}

impl Patience {
    /// Begins now. `unsure`: an attempt was already made, and may have been committed.
    pub(super) fn new(unsure: Option<String>) -> Self {
        Self { unsure, until: Instant::now() + RESOLVE_MAX }
    }

    /// Whether an earlier attempt may have been committed.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure.is_some()
    }

    /// Takes in that an attempt failed, and pauses before the next. The error is what the caller is told instead: without
    /// an unsure attempt the failure itself, after one that it is unknown.
    pub(super) async fn with(&mut self, failure: PgFailure) -> Result<(), StoreError> {
        match failure {
            PgFailure::Unsure(why) => self.unsure = Some(why),
            PgFailure::NotSent(error) | PgFailure::Refused(error) | PgFailure::Taken(error)
                if self.unsure.is_none() =>
            {
                return Err(error);
            }
            // Only an answer of the store clears the doubt about the first attempt.
            PgFailure::NotSent(_) | PgFailure::Refused(_) | PgFailure::Taken(_) => {}
        }
        match &self.unsure {
            Some(why) if Instant::now() >= self.until => Err(StoreError::Unknown(why.clone())),
            Some(_) | None => {
                tokio::time::sleep(RESOLVE_PAUSE).await;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_counts_only_while_nothing_may_have_been_committed() {
        let refused = || PgFailure::Refused(StoreError::Unavailable("locked".to_owned()));
        let mut patience = Patience::new(None);
        assert_eq!(patience.with(refused()).await, Err(StoreError::Unavailable("locked".to_owned())));
        assert_eq!(patience.with(PgFailure::Unsure("cut off".to_owned())).await, Ok(()));
        assert_eq!(patience.with(refused()).await, Ok(()));
        patience.until = Instant::now();
        assert_eq!(patience.with(refused()).await, Err(StoreError::Unknown("cut off".to_owned())));
    }
}
