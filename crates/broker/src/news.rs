//! A value that changes now and then, and those who wait for that. They wake in the order in which they wait, so that a simulation
//! of many of them can repeat itself.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// A value that others wait for.
pub(crate) struct News<T> {
    value: Mutex<T>,
    changed: Notify,
}

/// One who waits.
pub(crate) struct Subscriber<T> {
    news: Arc<News<T>>,
    seen: T,
}

impl<T: Copy + PartialEq> News<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(value), changed: Notify::new() })
    }

    pub(crate) fn get(&self) -> T {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value and wakes everybody. Says what it was.
    pub(crate) fn update(&self, next: impl FnOnce(T) -> T) -> T {
        let before = {
            let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            let next = next(*value);
            std::mem::replace(&mut *value, next)
        };
        self.changed.notify_waiters();
        before
    }

    /// Whoever begins to wait now hears of every value but the present one.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Subscriber<T> {
        Subscriber { news: Arc::clone(self), seen: self.get() }
    }
}

impl<T: Copy + PartialEq> Subscriber<T> {
    /// The value now, which is then known.
    pub(crate) fn look(&mut self) -> T {
        self.seen = self.news.get();
        self.seen
    }

    /// Waits for a value that is not known yet.
    pub(crate) async fn changed(&mut self) {
        loop {
            // Made before looking, so that no change in between is missed.
            let changed = self.news.changed.notified();
            let now = self.news.get();
            if now != self.seen {
                self.seen = now;
                return;
            }
            changed.await;
        }
    }

    /// Waits until the value is this one.
    pub(crate) async fn wait_for(&mut self, wanted: T) {
        while self.look() != wanted {
            self.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_before_and_after_waiting_is_heard_once() {
        let news = News::new(1);
        let mut one = news.subscribe();
        assert_eq!(news.update(|value| value + 1), 1);
        one.changed().await;
        let waiting = tokio::spawn(async move { one.wait_for(4).await });
        tokio::task::yield_now().await;
        news.update(|_| 3);
        news.update(|_| 4);
        waiting.await.unwrap();
    }
}
