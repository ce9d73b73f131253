//! The store as the process sees it: slow, full, or failing to sync. What is written is written by the production store.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_delivery::Received;
use semel_delivery::envelope::Draft;
use semel_delivery::judge::Verdict;
use semel_delivery::message::{Attempt, Came, Event, Gap, Request, Row};
use semel_delivery::operator::{Audited, Operator};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{
    Arrived, Depth, FencedWrite, Filter, Find, Head, InboxDepth, KeptTime, LanePlan, LaneRebuilt, LaneState,
    OutboxStore, Recovered, Replaced, Reply, Room, StoreError, Successor, Terms,
};
use semel_store::clock::Mark;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::outbox::world::{OutboxWorld, at_once};

/// A process's way to its disk.
pub(super) struct Disk {
    pub(super) world: Arc<OutboxWorld>,
    pub(super) life: Arc<Life>,
    pub(super) store: Arc<SqliteStore>,
}

impl Disk {
    fn may_crash(&self) {
        if self.world.strikes(DeliveryFault::CrashAtWrite) {
            self.world.note(None, format!("{} crashes at a write", self.life.name));
            self.life.kill();
        }
    }

    fn slow(&self) -> Duration {
        match self.world.strikes(DeliveryFault::DiskSlow) {
            true => self.world.rng(|rng| rng.millis(20, 3000)),
            false => self.world.rng(|rng| rng.millis(0, 2)),
        }
    }

    /// A write: all of it or nothing, or nobody knows until the next start.
    async fn write<T: Send>(
        &self,
        what: &'static str,
        act: impl FnOnce(&SqliteStore) -> Reply<'_, T> + Send,
    ) -> Result<T, StoreError> {
        self.life.awake().await;
        sleep(self.slow()).await;
        self.may_crash();
        self.life.awake().await;
        if self.world.is_doubtful() {
            return Err(StoreError::Failed("a sync has failed".to_owned()));
        }
        let is_full = self.world.strikes(DeliveryFault::DiskFull);
        let before = self.world.strikes(DeliveryFault::SyncFails).then(|| self.store.image()).flatten();
        self.store.faults().fill_disk(is_full);
        let mut answer = at_once(act(&self.store));
        self.store.faults().fill_disk(false);
        if let Some(before) = before {
            self.world.note(None, format!("{} {what}: the sync fails", self.life.name));
            self.world.sync_failed(before);
            answer = Err(StoreError::Failed("the sync failed".to_owned()));
        }
        self.may_crash();
        sleep(self.slow()).await;
        self.life.awake().await;
        answer
    }

    async fn read<T: Send>(
        &self,
        act: impl FnOnce(&SqliteStore) -> Reply<'_, T> + Send,
    ) -> Result<T, StoreError> {
        self.life.awake().await;
        if self.world.is_doubtful() {
            return Err(StoreError::Failed("a sync has failed".to_owned()));
        }
        let answer = at_once(act(&self.store));
        sleep(self.slow()).await;
        self.life.awake().await;
        answer
    }
}

impl OutboxStore for Disk {
    fn by(&self, operator: Operator) -> Arc<dyn OutboxStore> {
        let store = Arc::new(self.store.in_name_of(operator));
        Arc::new(Disk { world: Arc::clone(&self.world), life: Arc::clone(&self.life), store })
    }

    fn trail(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<Audited>> {
        Box::pin(self.read(move |store| store.trail(before, limit)))
    }

    fn recover(&self, now: Timestamp) -> Reply<'_, Recovered> {
        Box::pin(self.write("recover", move |store| store.recover(now)))
    }

    fn accept(&self, draft: Draft, now: Timestamp, epoch: i64, room: Room) -> Reply<'_, Arrived> {
        Box::pin(self.write("accept", move |store| store.accept(draft, now, epoch, room)))
    }

    fn claim(&self, lane: &str, terms: Terms) -> Reply<'_, Head> {
        let lane = lane.to_owned();
        Box::pin(self.write("claim", move |store| store.claim(&lane, terms)))
    }

    fn set_aside(&self, row: i64, terms: Terms) -> Reply<'_, bool> {
        Box::pin(self.write("set aside", move |store| store.set_aside(row, terms)))
    }

    fn put_back(&self, row: i64, fence: Fence) -> Reply<'_, bool> {
        Box::pin(self.write("put back", move |store| store.put_back(row, fence)))
    }

    fn settle(&self, row: i64, fence: Fence, verdict: Verdict) -> Reply<'_, FencedWrite> {
        Box::pin(self.write("settle", move |store| store.settle(row, fence, verdict)))
    }

    fn give_up(&self, row: i64, verdict: Verdict) -> Reply<'_, FencedWrite> {
        Box::pin(self.write("give up", move |store| store.give_up(row, verdict)))
    }

    fn end_leases(&self, now: Timestamp) -> Reply<'_, Vec<String>> {
        Box::pin(self.write("end leases", move |store| store.end_leases(now)))
    }

    fn abort(&self, row: i64, by: &'static str, why: &str, now: Timestamp) -> Reply<'_, Option<Row>> {
        let why = why.to_owned();
        Box::pin(self.write("abort", move |store| store.abort(row, by, &why, now)))
    }

    fn replace(&self, row: i64, successor: Successor, now: Timestamp, epoch: i64) -> Reply<'_, Replaced> {
        Box::pin(self.write("replace", move |store| store.replace(row, successor, now, epoch)))
    }

    fn rebuild(&self, row: i64, plan: LanePlan, now: Timestamp, epoch: i64) -> Reply<'_, LaneRebuilt> {
        Box::pin(self.write("rebuild", move |store| store.rebuild(row, plan, now, epoch)))
    }

    fn hurry(&self, row: i64, now: Timestamp) -> Reply<'_, Option<Row>> {
        Box::pin(self.write("hurry", move |store| store.hurry(row, now)))
    }

    fn set_paused(&self, lane: &str, is_paused: bool, now: Timestamp) -> Reply<'_, ()> {
        let lane = lane.to_owned();
        Box::pin(self.write("set paused", move |store| store.set_paused(&lane, is_paused, now)))
    }

    fn release(&self, principal: &str, now: Timestamp) -> Reply<'_, Vec<String>> {
        let principal = principal.to_owned();
        Box::pin(self.write("release", move |store| store.release(&principal, now)))
    }

    fn set_signed_out(&self, principal: &str, is_out: bool, now: Timestamp) -> Reply<'_, ()> {
        let principal = principal.to_owned();
        Box::pin(self.write("sign out", move |store| store.set_signed_out(&principal, is_out, now)))
    }

    fn live_lanes(&self) -> Reply<'_, Vec<String>> {
        Box::pin(self.read(|store| store.live_lanes()))
    }

    fn lanes(&self) -> Reply<'_, Vec<LaneState>> {
        Box::pin(self.read(|store| store.lanes()))
    }

    fn lane(&self, lane: &str) -> Reply<'_, LaneState> {
        let lane = lane.to_owned();
        Box::pin(self.read(move |store| store.lane(&lane)))
    }

    fn find(&self, find: Find) -> Reply<'_, Option<Row>> {
        Box::pin(self.read(move |store| store.find(find)))
    }

    fn request(&self, row: i64) -> Reply<'_, Option<Request>> {
        Box::pin(self.read(move |store| store.request(row)))
    }

    fn attempts(&self, row: i64) -> Reply<'_, Vec<Attempt>> {
        Box::pin(self.read(move |store| store.attempts(row)))
    }

    fn list(&self, filter: Filter) -> Reply<'_, Vec<Row>> {
        Box::pin(self.read(move |store| store.list(filter)))
    }

    fn events(&self, after: i64, limit: u32) -> Reply<'_, (Vec<Event>, i64)> {
        Box::pin(self.read(move |store| store.events(after, limit)))
    }

    fn note(&self, kind: &'static str, detail: String, now: Timestamp) -> Reply<'_, ()> {
        Box::pin(self.write("note", move |store| store.note(kind, detail, now)))
    }

    fn depth(&self) -> Reply<'_, Depth> {
        Box::pin(self.read(|store| store.depth()))
    }

    fn learn(
        &self,
        epoch: i64,
        ahead: Option<i64>,
        retention: Option<(String, u64)>,
        now: Timestamp,
    ) -> Reply<'_, ()> {
        Box::pin(self.write("learn", move |store| store.learn(epoch, ahead, retention, now)))
    }

    fn purge(&self, before: Timestamp) -> Reply<'_, u64> {
        Box::pin(self.write("purge", move |store| store.purge(before)))
    }

    fn kept_time(&self) -> Reply<'_, Option<KeptTime>> {
        Box::pin(self.read(|store| store.kept_time()))
    }

    fn keep_time(&self, mark: Mark) -> Reply<'_, ()> {
        Box::pin(self.write("keep the time", move |store| store.keep_time(mark)))
    }

    fn watch(&self) -> watch::Receiver<i64> {
        self.store.watch()
    }

    fn receive(&self, message: Received, now: Timestamp) -> Reply<'_, bool> {
        Box::pin(self.write("receive", move |store| store.receive(message, now)))
    }

    fn received(&self, after: i64, limit: u32) -> Reply<'_, Vec<Received>> {
        Box::pin(self.read(move |store| store.received(after, limit)))
    }

    fn receive_line(&self, came: Came, now: Timestamp) -> Reply<'_, u64> {
        Box::pin(self.write("receive a line", move |store| store.receive_line(came, now)))
    }

    fn line_cursor(&self, mesh: &str, line: &str) -> Reply<'_, Option<String>> {
        let (mesh, line) = (mesh.to_owned(), line.to_owned());
        Box::pin(self.read(move |store| store.line_cursor(&mesh, &line)))
    }

    fn received_as(&self, sender: &str, message_id: &str) -> Reply<'_, Vec<Received>> {
        let (sender, id) = (sender.to_owned(), message_id.to_owned());
        Box::pin(self.read(move |store| store.received_as(&sender, &id)))
    }

    fn acknowledge(&self, mesh: &str, sender: &str, message_id: &str, now: Timestamp) -> Reply<'_, bool> {
        let [mesh, sender, id] = [mesh, sender, message_id].map(str::to_owned);
        Box::pin(self.write("acknowledge", move |store| store.acknowledge(&mesh, &sender, &id, now)))
    }

    fn gaps(&self, after: i64, limit: u32) -> Reply<'_, Vec<Gap>> {
        Box::pin(self.read(move |store| store.gaps(after, limit)))
    }

    fn inbox_depth(&self) -> Reply<'_, InboxDepth> {
        Box::pin(self.read(|store| store.inbox_depth()))
    }

    fn own_number(&self, or: i64) -> Reply<'_, i64> {
        Box::pin(self.write("its number", move |store| store.own_number(or)))
    }
}
