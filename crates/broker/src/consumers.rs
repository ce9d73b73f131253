//! The streams of one consumer at this broker: when another one begins, the older ones are told, and nobody else is. Which of them
//! is the newest is the store's to say.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::identity::Caller;
use crate::news::{News, Subscriber};

/// A mesh, a member, and a consumer of it.
type Name = (String, String, String);

/// Every consumer with streams here, and how many it has.
#[derive(Default)]
pub(crate) struct Consumers(Mutex<HashMap<Name, (Arc<News<u64>>, usize)>>);

/// One stream among those of its consumer.
pub(crate) struct Joined {
    all: Arc<Consumers>,
    name: Name,
    begun: Arc<News<u64>>,
    heard: Subscriber<u64>,
}

impl Consumers {
    /// Joins the streams of a consumer: what begins later is heard.
    pub(crate) fn join(self: &Arc<Self>, caller: &Caller, consumer: &str) -> Joined {
        let name = (caller.mesh.clone(), caller.member.clone(), consumer.to_owned());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, streams) = all.entry(name.clone()).or_insert_with(|| (News::new(0), 0));
        *streams += 1;
        Joined { all: Arc::clone(self), name, heard: begun.subscribe(), begun: Arc::clone(begun) }
    }
}

impl Joined {
    /// This stream has begun: all of its consumer look, this one too, since another may have begun at the same moment.
    pub(crate) fn tell(&self) {
        self.begun.update(|count| count + 1);
    }

    /// Waits until a stream of the consumer has begun since this one joined, or was told last.
    pub(crate) async fn another(&mut self) {
        self.heard.changed().await;
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, streams)) = all.get_mut(&self.name) {
            *streams -= 1;
            if *streams == 0 {
                all.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn only_streams_of_the_same_consumer_hear_of_each_other() {
        let all = Arc::new(Consumers::default());
        let caller = |member: &str| Caller { mesh: "m".to_owned(), member: member.to_owned() };
        let mut one = all.join(&caller("bob"), "phone");
        let mut other = all.join(&caller("bob"), "laptop");
        let mut stranger = all.join(&caller("carol"), "phone");
        let mut newer = all.join(&caller("bob"), "phone");
        newer.tell();
        for one in [&mut one, &mut newer] {
            assert_eq!(one.another().now_or_never(), Some(()));
            assert_eq!(one.another().now_or_never(), None, "once");
        }
        for other in [&mut other, &mut stranger] {
            assert_eq!(other.another().now_or_never(), None);
        }
        drop(one);
        assert_eq!(all.0.lock().unwrap().len(), 3);
        drop((newer, other, stranger));
        assert!(all.0.lock().unwrap().is_empty(), "nobody is kept");
    }
}
