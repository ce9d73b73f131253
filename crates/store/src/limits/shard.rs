//! One lock's worth of the limiter in memory: its subjects, what is kept of each, and when each may be forgotten. Owns
//! the bookkeeping of room: whatever is kept was taken from it, and whatever is forgotten is given back.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_contract::profile::{Charge, Rate};
use semel_contract::time::Timestamp;

use super::log::KeyLog;
use super::window::{
    Counted, Pair, Step, leaves_at, marker_life_millis, requests_life_millis, window_end, window_floor,
    window_millis,
};
use super::{Admission, Verdict};

/// The room that all shards share: a busy principal may use what the others leave.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) taken: AtomicUsize,
    pub(super) max: usize,
}

impl Room {
    fn take(&self, count: usize) -> Option<()> {
        let more = |taken: usize| taken.checked_add(count).filter(|taken| *taken <= self.max);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok().map(|_| ())
    }

    fn give_back(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Subject {
    pub(super) who: [u8; 16],
    kind: Kind,
    window: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Requests,
    /// The ids of one aligned window, each window by itself: whoever comes late to the old one still finds its markers.
    Window(i64),
    Log,
}

impl Subject {
    pub(super) fn new(who: [u8; 16], kind: Kind, rate: Rate) -> Self {
        Self { who, kind, window: window_millis(rate.window) }
    }
}

#[derive(Debug)]
pub(super) struct Tracked {
    expires_at: Timestamp,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Requests(Pair),
    /// Tries by id. The counter of the window is how many there are, so that a refund cannot be forgotten.
    Window(HashMap<[u8; 16], u32>),
    Log(KeyLog),
}

impl Kept {
    fn empty(kind: Kind) -> Self {
        match kind {
            Kind::Requests => Kept::Requests(Pair::default()),
            Kind::Window(_) => Kept::Window(HashMap::new()),
            Kind::Log => Kept::Log(KeyLog::default()),
        }
    }

    /// How much room it takes, itself included.
    fn size(&self) -> usize {
        match self {
            Kept::Requests(_) => 1,
            Kept::Window(ids) => 1 + ids.len(),
            Kept::Log(log) => 1 + log.len(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) subjects: HashMap<Subject, Tracked>,
    /// When each may be cleared away, at the earliest: a charge since then is noticed when its turn comes.
    pub(super) by_expiry: BTreeSet<(Timestamp, Subject)>,
}

impl Shard {
    pub(super) fn evict(&mut self, now: Timestamp, most: usize, room: &Room) {
        let mut looked_at = 0;
        while looked_at < most
            && let Some((at, subject)) = self.by_expiry.first().copied().filter(|(at, _)| *at <= now)
        {
            looked_at += 1;
            self.by_expiry.remove(&(at, subject));
            match self.subjects.get(&subject) {
                Some(tracked) if tracked.expires_at > now => {
                    self.by_expiry.insert((tracked.expires_at, subject));
                }
                Some(tracked) => {
                    room.give_back(tracked.kept.size());
                    self.subjects.remove(&subject);
                }
                None => {}
            }
        }
    }

    /// Counts a request. `None`: there is no room for its subject.
    pub(super) fn count(
        &mut self,
        subject: Subject,
        rate: Rate,
        now: Timestamp,
        room: &Room,
    ) -> Option<Verdict> {
        let known = match self.subjects.get(&subject).map(|tracked| &tracked.kept) {
            Some(Kept::Requests(pair)) => Some(*pair),
            Some(Kept::Window(_) | Kept::Log(_)) | None => None,
        };
        let (pair, counted) = Pair::count(known, rate, now);
        match counted {
            Counted::Yes => {
                if let Kept::Requests(kept) = self.charged(subject, rate, now, 0, room)? {
                    *kept = pair;
                }
            }
            Counted::No => {}
        }
        Some(pair.verdict(counted, rate, now))
    }

    /// Charges an id. `None`: there is no room for its subject or for itself.
    pub(super) fn charge(
        &mut self,
        subject: Subject,
        wish: Admission<'_>,
        now: Timestamp,
        room: &Room,
    ) -> Option<Verdict> {
        match wish.charge {
            Charge::IdWindow => self.charge_in_window(subject, wish, now, room),
            Charge::NewKey => self.charge_in_log(subject, wish, now, room),
        }
    }

    /// The subject, with its life prolonged from now; made if there is room for it and `more`.
    fn charged(
        &mut self,
        subject: Subject,
        rate: Rate,
        now: Timestamp,
        more: usize,
        room: &Room,
    ) -> Option<&mut Kept> {
        let life = match subject.kind {
            Kind::Requests => requests_life_millis(rate.window),
            Kind::Window(_) | Kind::Log => marker_life_millis(rate.window),
        };
        let expires_at = Timestamp::from_millis(now.millis().saturating_add(life));
        let is_new = !self.subjects.contains_key(&subject);
        room.take(more + usize::from(is_new))?;
        if is_new {
            self.by_expiry.insert((expires_at, subject));
        }
        let empty = || Tracked { expires_at, kept: Kept::empty(subject.kind) };
        let tracked = self.subjects.entry(subject).or_insert_with(empty);
        tracked.expires_at = tracked.expires_at.max(expires_at);
        Some(&mut tracked.kept)
    }

    fn charge_in_window(
        &mut self,
        subject: Subject,
        wish: Admission<'_>,
        now: Timestamp,
        room: &Room,
    ) -> Option<Verdict> {
        let rate = wish.rate;
        let ids = match self.subjects.get_mut(&subject).map(|tracked| &mut tracked.kept) {
            Some(Kept::Window(ids)) => Some(ids),
            Some(Kept::Requests(_) | Kept::Log(_)) | None => None,
        };
        let used = as_count(ids.as_ref().map_or(0, |ids| ids.len()));
        let tries = ids.and_then(|ids| ids.get_mut(&wish.id));
        let step = Step::of(tries.as_deref().copied(), used, rate.count, wish.attempts_per_id);
        let used = match step {
            Step::First => {
                if let Kept::Window(ids) = self.charged(subject, rate, now, 1, room)? {
                    ids.insert(wish.id, 1);
                }
                used + 1
            }
            Step::Again => {
                tries.into_iter().for_each(|tries| *tries += 1);
                used
            }
            Step::OverLimit | Step::TooOften => used,
        };
        Some(step.verdict(used, rate, window_end(now, rate.window), now))
    }

    fn charge_in_log(
        &mut self,
        subject: Subject,
        wish: Admission<'_>,
        now: Timestamp,
        room: &Room,
    ) -> Option<Verdict> {
        let rate = wish.rate;
        let floor = window_floor(now, rate.window);
        let (used, sight, is_held) = match self.subjects.get_mut(&subject).map(|tracked| &mut tracked.kept) {
            Some(Kept::Log(log)) => {
                room.give_back(log.clear_until(floor));
                (as_count(log.live(floor)), log.sight(wish.id, floor), log.holds(wish.id))
            }
            Some(Kept::Requests(_) | Kept::Window(_)) | None => (0, None, false),
        };
        let step = Step::of(sight.map(|sight| sight.tries), used, rate.count, wish.attempts_per_id);
        if step == Step::First
            && let Kept::Log(log) = self.charged(subject, rate, now, usize::from(!is_held), room)?
        {
            log.enter(wish.id, now);
        }
        let Some(Kept::Log(log)) = self.subjects.get_mut(&subject).map(|tracked| &mut tracked.kept) else {
            // Nothing was ever let in: a limit of none, which no waiting changes.
            return Some(step.verdict(used, rate, leaves_at(now, rate.window), now));
        };
        if step == Step::Again {
            log.try_again(wish.id);
        }
        let better = match step {
            Step::First | Step::Again => log.leaving(floor, 0),
            // Where the limit was lowered, more than one has to leave first.
            Step::OverLimit => log.leaving(floor, (used - rate.count) as usize),
            Step::TooOften => sight.map(|sight| sight.at),
        };
        let used = used + u32::from(step == Step::First);
        Some(step.verdict(used, rate, leaves_at(better.unwrap_or(now), rate.window), now))
    }
}

fn as_count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
