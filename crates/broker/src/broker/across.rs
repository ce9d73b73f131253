//! Messages of all lines of a member: those that mention it, and those that are found by their words. A page says for each line how
//! far it went, since only the numbers of a line are in the order of commits: a message that commits late is below no cursor.

use std::collections::{BTreeMap, VecDeque};

use super::Broker;
use super::line::ReadError;
use super::read::{Page, limit_of, raw};
use crate::event::Event;
use crate::event_id::{EventId, check_of};
use crate::identity::Caller;
use crate::store::Line;
use crate::store::follow::words_of;
use crate::store::history::Place;

/// Words of a search that are looked for.
const SEARCHED_WORDS_MAX: usize = 16;

/// How far a reader is in each line: `LINE=EVENT_ID,…`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cursor(BTreeMap<String, EventId>);

impl Cursor {
    fn parse(text: &str) -> Result<Self, ReadError> {
        if text.is_empty() || text == "0" {
            return Ok(Self::default());
        }
        let one = |one: &str| {
            let (name, id) = one.rsplit_once('=').ok_or(ReadError::BadCursor)?;
            Ok((name.to_owned(), id.parse().map_err(|_| ReadError::BadCursor)?))
        };
        Ok(Self(text.split(',').map(one).collect::<Result<_, ReadError>>()?))
    }

    /// Where it is in a line. A client may have decoded the name, as those do who write no URL themselves.
    fn of(&self, line: &Line) -> Option<EventId> {
        let name = line.wire_name();
        self.0.get(&semel_http::percent_encode(&name)).or_else(|| self.0.get(&name)).copied()
    }
}

/// The number after which a line goes on. What cannot be trusted begins again: a message may come twice, and none is left out.
fn trusted(id: EventId, line: &Line, epoch: i64, message: Option<&str>) -> i64 {
    let is_known = match message {
        Some(message) => check_of(message) == id.check,
        // Swept since.
        None => id.epoch == epoch,
    };
    if is_known && id.number < line.next_number { id.number } else { 0 }
}

/// The first of all lines by their ids, which begin with their time; of each line in the order of its numbers.
fn merge(found: Vec<Place>, most: usize) -> Vec<Place> {
    let mut lines: BTreeMap<i64, VecDeque<Place>> = BTreeMap::new();
    for place in found {
        lines.entry(place.line.line).or_default().push_back(place);
    }
    let mut merged = Vec::new();
    while merged.len() < most {
        let heads = lines.values_mut().filter(|line| !line.is_empty());
        let next = heads.min_by(|a, b| a[0].broker_message_id.cmp(&b[0].broker_message_id));
        match next.and_then(VecDeque::pop_front) {
            Some(place) => merged.push(place),
            None => break,
        }
    }
    merged
}

/// The lines of a member, and how far a reader is in each.
struct Far {
    lines: Vec<Line>,
    far: BTreeMap<i64, EventId>,
}

impl Far {
    /// The number after which a line goes on.
    fn after(&self, line: &Line) -> i64 {
        self.far.get(&line.line).map_or(0, |id| id.number)
    }
}

impl Broker {
    /// Messages that mention a member and that it may read, after what an earlier page says in `next_after`.
    ///
    /// # Errors
    /// The cursor is not one, or the store does not answer.
    pub async fn mentions(
        &self,
        caller: &Caller,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page, ReadError> {
        let (far, most) = (self.far(caller, after).await?, limit_of(limit));
        let after = far.far.iter().map(|(line, id)| (*line, id.number)).collect();
        let found = self.0.store.mentions(&caller.mesh, &caller.member, &after, most).await?;
        self.page_of(far, merge(found, most)).await
    }

    /// Messages that have all the words of a text and that a member may read, after what an earlier page says in `next_after`.
    ///
    /// # Errors
    /// The cursor is not one, or the store does not answer.
    pub async fn search(
        &self,
        caller: &Caller,
        text: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page, ReadError> {
        let (far, most) = (self.far(caller, after).await?, limit_of(limit));
        let words: Vec<String> = words_of(text).into_iter().take(SEARCHED_WORDS_MAX).collect();
        let lines: Vec<(&Line, i64)> = far.lines.iter().map(|line| (line, far.after(line))).collect();
        let found = self.0.store.search((&caller.mesh, &caller.member), &words, &lines, most).await?;
        self.page_of(far, merge(found, most)).await
    }

    /// How far a reader is in each of its lines, as an earlier page said.
    async fn far(&self, caller: &Caller, after: Option<&str>) -> Result<Far, ReadError> {
        let cursor = Cursor::parse(after.unwrap_or_default())?;
        let (store, epoch) = (&self.0.store, self.0.directory.epoch());
        let lines = store.lines_of(&caller.mesh, &caller.member).await?;
        let known: Vec<(&Line, EventId)> =
            lines.iter().filter_map(|line| Some((line, cursor.of(line)?))).collect();
        let places: Vec<(i64, i64)> = known.iter().map(|(line, id)| (line.line, id.number)).collect();
        let mut far: BTreeMap<i64, EventId> = BTreeMap::new();
        for ((line, id), message) in known.into_iter().zip(store.message_ids(&places).await?) {
            let number = trusted(id, line, epoch, message.as_deref());
            if number > 0 {
                far.insert(line.line, EventId { epoch, number, ..id });
            }
        }
        Ok(Far { lines, far })
    }

    /// A page of what was found, and how far each line went with it.
    async fn page_of(&self, far: Far, found: Vec<Place>) -> Result<Page, ReadError> {
        let (Far { lines, mut far }, epoch) = (far, self.0.directory.epoch());
        let places: Vec<(Line, i64)> = found.iter().map(|place| (place.line.clone(), place.number)).collect();
        let stored = self.0.store.messages(&places).await?;
        let (mut messages, mut stored) = (Vec::new(), stored.into_iter().peekable());
        for Place { line, number, broker_message_id } in &found {
            // What was swept just now is left out.
            if let Some(stored) =
                stored.next_if(|stored| (stored.line, stored.number) == (line.line, *number))
            {
                messages.extend(raw(&Event::of(&line.wire_name(), epoch, &stored)));
            }
            far.insert(line.line, EventId::of(epoch, *number, broker_message_id));
        }
        let named = |line: &Line| {
            let id = far.get(&line.line)?;
            Some(format!("{}={id}", semel_http::percent_encode(&line.wire_name())))
        };
        let next = || lines.iter().filter_map(named).collect::<Vec<_>>().join(",");
        Ok(Page { messages, next_after: (!found.is_empty()).then(next), gap: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: i64, name: &str) -> Line {
        Line { line, kind: "topic".to_owned(), name: name.to_owned(), next_number: 10 }
    }

    fn place(at: &Line, number: i64, id: &str) -> Place {
        Place { line: at.clone(), number, broker_message_id: id.to_owned() }
    }

    #[test]
    fn a_line_keeps_its_order_whatever_its_ids_say() {
        let (a, b) = (line(1, "a"), line(2, "b"));
        let found = vec![place(&a, 1, "5"), place(&a, 2, "1"), place(&b, 1, "3"), place(&b, 2, "4")];
        let order = |most| -> Vec<String> {
            merge(found.clone(), most).into_iter().map(|place| place.broker_message_id).collect()
        };
        assert_eq!(order(9), ["3", "4", "5", "1"]);
        assert_eq!(order(1), ["3"]);
    }

    #[test]
    fn a_cursor_is_read_encoded_and_decoded_and_rubbish_is_refused() {
        let topic = line(1, "a b");
        for text in ["topic%3Aa%20b=1.2.00ff", "topic:a b=1.2.00ff"] {
            let id = Cursor::parse(text).unwrap().of(&topic);
            assert_eq!(id, Some(EventId { epoch: 1, number: 2, check: 255 }), "{text}");
        }
        assert_eq!(Cursor::parse("0"), Ok(Cursor::default()));
        for text in ["1.2.00ff", "topic:a=1.2", "a=1.2.00ff,b", "01ARYZ6S410000000000000000"] {
            assert_eq!(Cursor::parse(text), Err(ReadError::BadCursor), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_trusted_begins_again() {
        const MESSAGE: &str = "01ARYZ6S410000000000000000";
        let (line, id) = (line(1, "a"), EventId::of(2, 5, MESSAGE));
        assert_eq!(trusted(id, &line, 2, Some(MESSAGE)), 5);
        assert_eq!(trusted(id, &line, 3, Some(MESSAGE)), 5, "the same message in a later epoch");
        assert_eq!(trusted(id, &line, 2, Some("another")), 0);
        assert_eq!(trusted(id, &line, 2, None), 5, "swept");
        assert_eq!(trusted(id, &line, 3, None), 0);
        assert_eq!(trusted(EventId { number: 10, ..id }, &line, 2, None), 0, "it was never given");
    }
}
