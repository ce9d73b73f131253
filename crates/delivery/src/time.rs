//! The outbox's time: a clock that never goes back, and what servers' dates taught about it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_contract::time::{Timestamp, millis_of};
use semel_store::clock::{Ahead, Clock, Mark, StoreClock};

use crate::age::Local;
use crate::limits::SKEW_MAX;
use crate::store::{KeptTime, Recovered};

/// The outbox's time.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    local: StoreClock,
    epoch: i64,
    boot_epoch: i64,
    ahead: Mutex<HashMap<i64, i64>>,
}

impl Time {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        local: StoreClock,
        kept: Option<KeptTime>,
        recovered: &Recovered,
    ) -> Self {
        let boot = clock.boot();
        let of_this_boot = kept.filter(|kept| boot != 0 && kept.mark.boot == boot);
        let boot_epoch = of_this_boot.map_or(recovered.epoch, |kept| kept.boot_epoch);
        let known = recovered.epochs.iter().filter_map(|(epoch, ahead)| Some((*epoch, (*ahead)?))).collect();
        Self { clock, local, epoch: recovered.epoch, boot_epoch, ahead: Mutex::new(known) }
    }

    /// Now, on the clock that never goes back.
    pub(crate) fn now(&self) -> Timestamp {
        self.local.now(self.clock.read())
    }

    /// Why the wall clock is not believed, where it is not.
    pub(crate) fn ahead(&self) -> Ahead {
        self.mark().ahead
    }

    /// By how many milliseconds the wall clock is ahead, where it is not believed.
    pub(crate) fn jump(&self) -> Option<i64> {
        self.now();
        self.local.frozen()
    }

    /// What the wall clock shows, believed or not.
    pub(crate) fn wall(&self) -> Timestamp {
        self.clock.read().wall
    }

    /// The time, to be kept for the next process.
    pub(crate) fn mark(&self) -> Mark {
        self.local.mark(&*self.clock)
    }

    /// A person says that the wall clock is right.
    pub(crate) fn confirm(&self) {
        self.local.confirm(self.clock.read());
    }

    /// This run of the process.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Whether nothing tells how the clock of that run was: no server showed it, and the machine was started since.
    pub(crate) fn is_untold(&self, epoch: i64) -> bool {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        epoch < self.boot_epoch && !ahead.contains_key(&epoch)
    }

    /// A time of that run, with its correction.
    pub(crate) fn local(&self, at: Timestamp, epoch: i64) -> Local {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        Local { at, ahead: ahead.get(&epoch).copied() }
    }

    /// A server's date was seen. Returns the correction when it changes what is known.
    pub(crate) fn learn(&self, ahead: i64) -> Option<i64> {
        let mut known = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.insert(self.epoch, ahead);
        // Dates of several servers differ a little; what is kept on disk need not follow each.
        before.is_none_or(|before| (before - ahead).abs() > millis_of(SKEW_MAX) / 6).then_some(ahead)
    }
}
