//! The trait: each call is one job of the writer, or one read.

use std::sync::Arc;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_store::clock::Mark;
use tokio::sync::watch;

use super::{SqliteStore, accept, audit, claim, events, inbox, look as read, operate, row, settle, time};
use crate::envelope::Draft;
use crate::judge::Verdict;
use crate::message::{Attempt, Came, Event, Gap, Received, Request, Row};
use crate::operator::{Audited, Operator};
use crate::store::{
    Arrived, Depth, FencedWrite, Filter, Find, Head, InboxDepth, KeptTime, LanePlan, LaneRebuilt, LaneState,
    OutboxStore, Recovered, Replaced, Reply, Room, StoreError, Successor, Terms,
};

impl OutboxStore for SqliteStore {
    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(std::future::ready(self.engine.shared().health.ready().map_err(StoreError::from)))
    }

    fn by(&self, operator: Operator) -> Arc<dyn OutboxStore> {
        Arc::new(self.in_name_of(operator))
    }

    fn trail(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<Audited>> {
        self.look(move |connection| audit::latest(connection, before, limit))
    }

    fn recover(&self, now: Timestamp) -> Reply<'_, Recovered> {
        self.write(move |connection, turn| claim::recover(connection, turn, now))
    }

    fn accept(&self, draft: Draft, now: Timestamp, epoch: i64, room: Room) -> Reply<'_, Arrived> {
        self.write(move |connection, turn| accept::accept(connection, turn, &draft, now, epoch, room))
    }

    fn claim(&self, lane: &str, terms: Terms) -> Reply<'_, Head> {
        let lane = lane.to_owned();
        self.write(move |connection, turn| claim::claim(connection, turn, &lane, terms))
    }

    fn set_aside(&self, row: i64, terms: Terms) -> Reply<'_, bool> {
        self.write(move |connection, turn| claim::set_aside(connection, turn, row, terms))
    }

    fn put_back(&self, row: i64, fence: Fence) -> Reply<'_, bool> {
        self.write(move |connection, _| claim::put_back(connection, row, fence))
    }

    fn settle(&self, row: i64, fence: Fence, verdict: Verdict) -> Reply<'_, FencedWrite> {
        self.write(move |connection, turn| settle::settle(connection, turn, row, fence, &verdict))
    }

    fn give_up(&self, row: i64, verdict: Verdict) -> Reply<'_, FencedWrite> {
        self.write(move |connection, turn| settle::give_up(connection, turn, row, &verdict))
    }

    fn end_leases(&self, now: Timestamp) -> Reply<'_, Vec<String>> {
        self.write(move |connection, _| claim::end_leases(connection, now))
    }

    fn abort(&self, row: i64, by: &'static str, why: &str, now: Timestamp) -> Reply<'_, Option<Row>> {
        let (why, operator) = (why.to_owned(), self.operator.clone());
        self.write(move |connection, turn| {
            let aborted = operate::abort(connection, turn, row, by, &why, now)?;
            if let Some(row) = &aborted {
                let done = ("abort", row.client_message_id.as_str(), "");
                audit::write(connection, operator.as_ref(), done, now)?;
            }
            Ok(aborted)
        })
    }

    fn replace(&self, row: i64, successor: Successor, now: Timestamp, epoch: i64) -> Reply<'_, Replaced> {
        let operator = self.operator.clone();
        self.write(move |connection, turn| {
            let replaced = operate::replace(connection, turn, row, &successor, now, epoch)?;
            if let Replaced::Done(old, new) = &replaced {
                let told = if new.ambiguous { "possibly delivered; " } else { "" };
                let detail = format!("{told}replaced by {}", new.client_message_id);
                let done = ("requeue", old.client_message_id.as_str(), detail.as_str());
                audit::write(connection, operator.as_ref(), done, now)?;
            }
            Ok(replaced)
        })
    }

    fn rebuild(&self, row: i64, plan: LanePlan, now: Timestamp, epoch: i64) -> Reply<'_, LaneRebuilt> {
        self.write(move |connection, turn| operate::rebuild(connection, turn, row, &plan, now, epoch))
    }

    fn hurry(&self, row: i64, now: Timestamp) -> Reply<'_, Option<Row>> {
        self.write(move |connection, _| operate::hurry(connection, row, now))
    }

    fn set_paused(&self, lane: &str, is_paused: bool, now: Timestamp) -> Reply<'_, ()> {
        let (lane, operator) = (lane.to_owned(), self.operator.clone());
        self.write(move |connection, turn| {
            operate::set_paused(connection, turn, &lane, is_paused, now)?;
            let action = if is_paused { "pause" } else { "resume" };
            Ok(audit::write(connection, operator.as_ref(), (action, lane.as_str(), ""), now)?)
        })
    }

    fn release(&self, principal: &str, now: Timestamp) -> Reply<'_, Vec<String>> {
        let (principal, operator) = (principal.to_owned(), self.operator.clone());
        self.write(move |connection, turn| {
            let lanes = operate::release(connection, turn, &principal, now)?;
            let detail = format!("lanes {}", lanes.len());
            let done = ("release", principal.as_str(), detail.as_str());
            audit::write(connection, operator.as_ref(), done, now)?;
            Ok(lanes)
        })
    }

    fn set_signed_out(&self, principal: &str, is_out: bool, now: Timestamp) -> Reply<'_, ()> {
        let principal = principal.to_owned();
        self.write(move |connection, _| operate::set_signed_out(connection, &principal, is_out, now))
    }

    fn live_lanes(&self) -> Reply<'_, Vec<String>> {
        self.look(read::live_lanes)
    }

    fn lanes(&self) -> Reply<'_, Vec<LaneState>> {
        self.look(read::lanes)
    }

    fn lane(&self, lane: &str) -> Reply<'_, LaneState> {
        let lane = lane.to_owned();
        self.look(move |connection| read::lane(connection, lane))
    }

    fn find(&self, find: Find) -> Reply<'_, Option<Row>> {
        self.look(move |connection| row::find(connection, &find))
    }

    fn request(&self, id: i64) -> Reply<'_, Option<Request>> {
        self.look(move |connection| row::request(connection, id))
    }

    fn attempts(&self, id: i64) -> Reply<'_, Vec<Attempt>> {
        self.look(move |connection| read::attempts(connection, id))
    }

    fn list(&self, filter: Filter) -> Reply<'_, Vec<Row>> {
        self.look(move |connection| read::list(connection, &filter))
    }

    fn events(&self, after: i64, limit: u32) -> Reply<'_, (Vec<Event>, i64)> {
        self.look(move |connection| read::events_after(connection, after, limit))
    }

    fn note(&self, kind: &'static str, detail: String, now: Timestamp) -> Reply<'_, ()> {
        let operator = self.operator.clone();
        self.write(move |connection, turn| {
            events::general(connection, turn, kind, None, Some(&detail), now)?;
            Ok(audit::write(connection, operator.as_ref(), (kind, "", &detail), now)?)
        })
    }

    fn depth(&self) -> Reply<'_, Depth> {
        self.look(read::depth)
    }

    fn learn(
        &self,
        epoch: i64,
        ahead: Option<i64>,
        retention: Option<(String, u64)>,
        now: Timestamp,
    ) -> Reply<'_, ()> {
        self.write(move |connection, _| operate::learn(connection, epoch, ahead, retention.as_ref(), now))
    }

    fn purge(&self, before: Timestamp) -> Reply<'_, u64> {
        self.write(move |connection, turn| operate::purge(connection, turn, before))
    }

    fn kept_time(&self) -> Reply<'_, Option<KeptTime>> {
        self.look(time::kept)
    }

    fn keep_time(&self, mark: Mark) -> Reply<'_, ()> {
        self.write(move |connection, _| Ok(time::keep(connection, mark)?))
    }

    fn watch(&self) -> watch::Receiver<i64> {
        self.watch.clone()
    }

    fn receive(&self, message: Received, now: Timestamp) -> Reply<'_, bool> {
        self.write(move |connection, _| inbox::receive(connection, &message, now))
    }

    fn receive_line(&self, came: Came, now: Timestamp) -> Reply<'_, u64> {
        self.write(move |connection, _| inbox::receive_line(connection, &came, now))
    }

    fn line_cursor(&self, mesh: &str, line: &str) -> Reply<'_, Option<String>> {
        let (mesh, line) = (mesh.to_owned(), line.to_owned());
        self.look(move |connection| inbox::line_cursor(connection, &mesh, &line))
    }

    fn received(&self, after: i64, limit: u32) -> Reply<'_, Vec<Received>> {
        self.look(move |connection| inbox::received(connection, after, limit))
    }

    fn received_as(&self, sender: &str, message_id: &str) -> Reply<'_, Vec<Received>> {
        let (sender, message_id) = (sender.to_owned(), message_id.to_owned());
        self.look(move |connection| inbox::received_as(connection, &sender, &message_id))
    }

    fn acknowledge(&self, mesh: &str, sender: &str, message_id: &str, now: Timestamp) -> Reply<'_, bool> {
        let [mesh, sender, id] = [mesh, sender, message_id].map(str::to_owned);
        let operator = self.operator.clone();
        self.write(move |connection, _| {
            let is_first = inbox::acknowledge(connection, [&mesh, &sender, &id], now)?;
            if is_first {
                let detail = format!("of {sender}");
                audit::write(connection, operator.as_ref(), ("acknowledge", &id, &detail), now)?;
            }
            Ok(is_first)
        })
    }

    fn gaps(&self, after: i64, limit: u32) -> Reply<'_, Vec<Gap>> {
        self.look(move |connection| inbox::gaps(connection, after, limit))
    }

    fn inbox_depth(&self) -> Reply<'_, InboxDepth> {
        self.look(inbox::depth)
    }

    fn own_number(&self, or: i64) -> Reply<'_, i64> {
        self.write(move |connection, _| inbox::own_number(connection, or))
    }
}
