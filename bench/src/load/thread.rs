//! One thread of the load generator: an epoll loop over its connections.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::os::fd::AsRawFd;

use super::connection::{Connection, Got};
use super::keys;
use super::plan::Plan;
use super::report::Report;
use super::template::Template;
use super::timer::Timer;
use super::{Args, Ids, Shared};

/// How long answers that are owed at the end are awaited.
const PATIENCE_NANOSECONDS: u64 = 30_000_000_000;
/// One answer in so many is looked at closely.
const LOOK_EVERY: u64 = 64;
const TIMER: Token = Token(usize::MAX - 1);

/// A request that is due and has no free connection, or a free connection that has no request.
struct Sender<'a> {
    plan: Plan,
    template: &'a Template,
    shared: &'a Shared,
    ids: Ids,
    seed: u64,
    lanes: u64,
    /// How many requests it may still send.
    budget: u64,
    report: Report,
}

/// Sends this thread's share and returns what it measured.
pub(super) fn run(
    number: usize,
    threads: usize,
    args: &Args,
    template: &Template,
    shared: &Shared,
) -> io::Result<Report> {
    let mut poll = Poll::new()?;
    let mut connections = Vec::new();
    for place in (number..args.connections).step_by(threads) {
        let target = args.target[place % args.target.len()];
        connections.push(Connection::open(target, Token(connections.len()), template, poll.registry())?);
    }
    let mut sender = Sender {
        plan: Plan::new(number, threads, args),
        template,
        shared,
        ids: args.ids,
        seed: args.seed,
        lanes: args.lanes.max(1),
        budget: args.count.map_or(u64::MAX, |count| share(count, number, threads)),
        report: Report::default(),
    };
    match args.rate {
        None => closed(&mut poll, &mut connections, &mut sender)?,
        Some(rate) => open(&mut poll, &mut connections, &mut sender, rate / threads as f64)?,
    }
    Ok(sender.report)
}

/// Of the numbers below `count`, how many are this thread's: together they send exactly these, and a replay knows them.
fn share(count: u64, thread: usize, threads: usize) -> u64 {
    (count + threads as u64 - 1 - thread as u64) / threads as u64
}

/// Every connection sends again as soon as it has its answer.
fn closed(poll: &mut Poll, connections: &mut [Connection], sender: &mut Sender<'_>) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    for connection in connections.iter_mut() {
        sender.send(connection, None)?;
    }
    while connections.iter().any(|connection| connection.since.is_some()) {
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            let connection = &mut connections[event.token().0];
            if sender.receive(connection, poll)? {
                sender.send(connection, None)?;
            }
        }
        if sender.gave_up(connections) {
            break;
        }
    }
    Ok(())
}

/// Requests are due at a fixed rate. One that finds no free connection waits, and its wait counts.
fn open(
    poll: &mut Poll,
    connections: &mut [Connection],
    sender: &mut Sender<'_>,
    rate: f64,
) -> io::Result<()> {
    let timer = Timer::new()?;
    poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
    let gap = (1e9 / rate.max(0.001)) as u64;
    let mut due = sender.shared.now();
    let mut events = Events::with_capacity(1024);
    let mut free: Vec<usize> = (0..connections.len()).collect();
    let mut waiting: VecDeque<u64> = VecDeque::new();
    loop {
        let now = sender.shared.now();
        while due <= now && due < sender.shared.ends {
            waiting.push_back(due);
            due += gap;
        }
        while let (false, Some(place)) = (waiting.is_empty(), free.last().copied()) {
            let since = waiting.pop_front();
            sender.send(&mut connections[place], since)?;
            free.pop();
        }
        if (now >= sender.shared.ends && free.len() == connections.len()) || sender.gave_up(connections) {
            return Ok(());
        }
        timer.set(due.saturating_sub(sender.shared.now()))?;
        poll.poll(&mut events, Some(Duration::from_millis(100)))?;
        for event in &events {
            if event.token() != TIMER && sender.receive(&mut connections[event.token().0], poll)? {
                free.push(event.token().0);
            }
        }
    }
}

impl Sender<'_> {
    /// Sends the next request, unless the time or the number of requests is over. `due` is when an open loop wanted it.
    fn send(&mut self, connection: &mut Connection, due: Option<u64>) -> io::Result<()> {
        let now = self.shared.now();
        if due.is_none() && now >= self.shared.ends {
            return Ok(());
        }
        let Some(left) = self.budget.checked_sub(1) else { return Ok(()) };
        self.budget = left;
        let next = self.plan.next();
        if self.template.has_key() {
            self.template.set_key(&mut connection.request, &keys::key(self.ids, self.seed, next.number));
        }
        self.template.set_lane(&mut connection.request, next.number % self.lanes);
        self.report.sent += 1;
        self.report.fresh += u64::from(next.is_fresh);
        connection.send(due.unwrap_or(now))
    }

    /// Reads from a connection; says whether it is free again.
    fn receive(&mut self, connection: &mut Connection, poll: &Poll) -> io::Result<bool> {
        let look_closely = self.report.sent.is_multiple_of(LOOK_EVERY);
        match connection.receive(look_closely) {
            Got::Nothing => Ok(false),
            Got::Answer { status, is_replay } => {
                if let Some(since) = connection.since.take() {
                    self.answered(status, since, is_replay);
                }
                Ok(true)
            }
            Got::Lost => {
                self.report.lost += u64::from(connection.since.take().is_some());
                connection.reopen(poll.registry())?;
                Ok(true)
            }
        }
    }

    fn answered(&mut self, status: u16, since: u64, is_replay: Option<bool>) {
        let now = self.shared.now();
        *self.report.statuses.entry(status).or_default() += 1;
        if let Some(is_replay) = is_replay {
            self.report.looked_at += 1;
            self.report.replays += u64::from(is_replay);
        }
        if now < self.shared.measured_from || now > self.shared.ends {
            return;
        }
        let last = self.shared.last_answer.fetch_max(now, Ordering::Relaxed);
        self.report.stall = self.report.stall.max(now.saturating_sub(last));
        self.report.last_answer = now;
        if (200..300).contains(&status) {
            self.report.latencies.add(now.saturating_sub(since));
        }
    }

    /// Whether the answers that are still owed are waited for no longer.
    fn gave_up(&mut self, connections: &mut [Connection]) -> bool {
        if self.shared.now() < self.shared.ends + PATIENCE_NANOSECONDS {
            return false;
        }
        for connection in connections {
            self.report.lost += u64::from(connection.since.take().is_some());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_count_exactly() {
        for (count, threads) in [(10, 2), (11, 2), (1, 2), (0, 3), (100_001, 7)] {
            let shares: Vec<u64> = (0..threads).map(|thread| share(count, thread, threads)).collect();
            assert_eq!(shares.iter().sum::<u64>(), count);
            // The numbers of a thread are its own, its own plus all threads, and so on: all below the count.
            let highest = shares
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
                .map(|(t, n)| t as u64 + (n - 1) * threads as u64);
            assert!(highest.max().is_none_or(|highest| highest < count), "{count} {threads} {shares:?}");
        }
    }
}
