//! The trait, on whoever runs the work.

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use tokio::sync::watch;

use super::writer::{look, write};
use super::{SqliteStore, accept, claim, events, inbox, look as read, operate, row, settle};
use crate::envelope::Draft;
use crate::inbox::Received;
use crate::judge::Verdict;
use crate::message::{Attempt, Event, Request, Row};
use crate::store::{
    Arrived, Depth, Filter, Find, Head, LaneState, OutboxStore, Recovered, Replaced, Reply, Room, Successor,
    Terms, Written,
};

impl OutboxStore for SqliteStore {
    fn recover(&self, now: Timestamp) -> Reply<'_, Recovered> {
        write(&*self.run, move |connection, turn| claim::recover(connection, turn, now))
    }

    fn accept(&self, draft: Draft, now: Timestamp, epoch: i64, room: Room) -> Reply<'_, Arrived> {
        write(&*self.run, move |connection, turn| accept::accept(connection, turn, &draft, now, epoch, room))
    }

    fn claim(&self, lane: &str, terms: Terms) -> Reply<'_, Head> {
        let lane = lane.to_owned();
        write(&*self.run, move |connection, turn| claim::claim(connection, turn, &lane, terms))
    }

    fn set_aside(&self, row: i64, terms: Terms) -> Reply<'_, bool> {
        write(&*self.run, move |connection, turn| claim::set_aside(connection, turn, row, terms))
    }

    fn put_back(&self, row: i64, fence: Fence) -> Reply<'_, bool> {
        write(&*self.run, move |connection, _| claim::put_back(connection, row, fence))
    }

    fn settle(&self, row: i64, fence: Fence, verdict: Verdict) -> Reply<'_, Written> {
        write(&*self.run, move |connection, turn| settle::settle(connection, turn, row, fence, &verdict))
    }

    fn give_up(&self, row: i64, verdict: Verdict) -> Reply<'_, Written> {
        write(&*self.run, move |connection, turn| settle::give_up(connection, turn, row, &verdict))
    }

    fn end_leases(&self, now: Timestamp) -> Reply<'_, Vec<String>> {
        write(&*self.run, move |connection, _| claim::end_leases(connection, now))
    }

    fn abort(&self, row: i64, by: &'static str, why: &str, now: Timestamp) -> Reply<'_, Option<Row>> {
        let why = why.to_owned();
        write(&*self.run, move |connection, turn| operate::abort(connection, turn, row, by, &why, now))
    }

    fn replace(&self, row: i64, successor: Successor, now: Timestamp, epoch: i64) -> Reply<'_, Replaced> {
        write(&*self.run, move |connection, turn| {
            operate::replace(connection, turn, row, &successor, now, epoch)
        })
    }

    fn set_paused(&self, lane: &str, is_paused: bool, now: Timestamp) -> Reply<'_, ()> {
        let lane = lane.to_owned();
        write(&*self.run, move |connection, turn| {
            operate::set_paused(connection, turn, &lane, is_paused, now)
        })
    }

    fn release(&self, principal: &str, now: Timestamp) -> Reply<'_, Vec<String>> {
        let principal = principal.to_owned();
        write(&*self.run, move |connection, turn| operate::release(connection, turn, &principal, now))
    }

    fn live_lanes(&self) -> Reply<'_, Vec<String>> {
        look(&*self.run, read::live_lanes)
    }

    fn lanes(&self) -> Reply<'_, Vec<LaneState>> {
        look(&*self.run, read::lanes)
    }

    fn lane(&self, lane: &str) -> Reply<'_, LaneState> {
        let lane = lane.to_owned();
        look(&*self.run, move |connection| read::lane(connection, lane))
    }

    fn find(&self, find: Find) -> Reply<'_, Option<Row>> {
        look(&*self.run, move |connection| row::find(connection, &find))
    }

    fn request(&self, id: i64) -> Reply<'_, Option<Request>> {
        look(&*self.run, move |connection| row::request(connection, id))
    }

    fn attempts(&self, id: i64) -> Reply<'_, Vec<Attempt>> {
        look(&*self.run, move |connection| read::attempts(connection, id))
    }

    fn list(&self, filter: Filter) -> Reply<'_, Vec<Row>> {
        look(&*self.run, move |connection| read::list(connection, &filter))
    }

    fn events(&self, after: i64, limit: u32) -> Reply<'_, (Vec<Event>, i64)> {
        look(&*self.run, move |connection| read::events_after(connection, after, limit))
    }

    fn note(&self, kind: &'static str, detail: String, now: Timestamp) -> Reply<'_, ()> {
        write(&*self.run, move |connection, turn| {
            Ok(events::general(connection, turn, kind, None, Some(&detail), now)?)
        })
    }

    fn depth(&self) -> Reply<'_, Depth> {
        look(&*self.run, read::depth)
    }

    fn learn(
        &self,
        epoch: i64,
        ahead: Option<i64>,
        retention: Option<(String, u64)>,
        now: Timestamp,
    ) -> Reply<'_, ()> {
        write(&*self.run, move |connection, _| {
            operate::learn(connection, epoch, ahead, retention.as_ref(), now)
        })
    }

    fn purge(&self, before: Timestamp, now: Timestamp) -> Reply<'_, u64> {
        write(&*self.run, move |connection, turn| operate::purge(connection, turn, before, now))
    }

    fn high_water(&self) -> Reply<'_, Option<Timestamp>> {
        look(&*self.run, read::high_water)
    }

    fn watch(&self) -> watch::Receiver<i64> {
        self.watch.clone()
    }

    fn receive(&self, message: Received, now: Timestamp) -> Reply<'_, bool> {
        write(&*self.run, move |connection, _| inbox::receive(connection, &message, now))
    }

    fn received(&self, after: i64, limit: u32) -> Reply<'_, Vec<Received>> {
        look(&*self.run, move |connection| inbox::received(connection, after, limit))
    }

    fn acknowledge(&self, sender: &str, message_id: &str, now: Timestamp) -> Reply<'_, bool> {
        let (sender, message_id) = (sender.to_owned(), message_id.to_owned());
        write(&*self.run, move |connection, _| inbox::acknowledge(connection, &sender, &message_id, now))
    }
}
