//! What happened, in order, with a running hash. Two runs of one seed have the same hash, or the simulation is not one.

use std::fmt::Write as _;

/// Which key an event is about.
pub type SlotNumber = usize;

/// How many events a trace shows.
const TRACE_EVENTS_MAX: usize = 60;

/// One thing that happened.
#[derive(Clone, Debug)]
struct Event {
    at_millis: u64,
    slot: Option<SlotNumber>,
    text: String,
}

/// Everything that happened in a run.
#[derive(Debug)]
pub struct Log {
    events: Vec<Event>,
    hash: u64,
}

impl Default for Log {
    fn default() -> Self {
        // The offset basis of FNV-1a.
        Self { events: Vec::new(), hash: 0xCBF2_9CE4_8422_2325 }
    }
}

impl Log {
    /// Writes an event down.
    pub fn note(&mut self, at_millis: u64, slot: Option<SlotNumber>, text: String) {
        let number = slot.map_or(0, |slot| slot as u64 + 1);
        for bytes in [at_millis.to_le_bytes().as_slice(), &number.to_le_bytes(), text.as_bytes()] {
            for byte in bytes {
                self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
            }
        }
        self.events.push(Event { at_millis, slot, text });
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened yet.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last events about a key, and those that are about every key.
    pub fn trace(&self, slot: Option<SlotNumber>) -> String {
        let about = |event: &&Event| slot.is_none() || event.slot.is_none() || event.slot == slot;
        let mut last: Vec<&Event> = self.events.iter().rev().filter(about).take(TRACE_EVENTS_MAX).collect();
        last.reverse();
        shown(last.into_iter())
    }

    /// Everything.
    pub fn whole(&self) -> String {
        shown(self.events.iter())
    }

    /// Where two logs part, for a run that did not repeat itself.
    pub fn first_difference(&self, other: &Self) -> Option<String> {
        let show = |event: Option<&Event>| {
            event.map_or("nothing".to_owned(), |event| format!("{} {}", event.at_millis, event.text))
        };
        let same = |(one, two): &(&Event, &Event)| {
            one.at_millis == two.at_millis && one.text == two.text && one.slot == two.slot
        };
        let shared = self.events.iter().zip(&other.events).take_while(same).count();
        let (one, two) = (self.events.get(shared), other.events.get(shared));
        (one.is_some() || two.is_some())
            .then(|| format!("event {shared}: first {}, then {}", show(one), show(two)))
    }
}

fn shown<'a>(events: impl Iterator<Item = &'a Event>) -> String {
    let mut text = String::new();
    for event in events {
        let (seconds, millis) = (event.at_millis / 1000, event.at_millis % 1000);
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {seconds:>6}.{millis:03}  {}", event.text);
    }
    text
}
