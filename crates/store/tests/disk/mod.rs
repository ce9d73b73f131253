//! A disk under SQLite that can fail, lie, fill up and lose its power. Writes are visible at once, as in a page cache, and
//! durable once they are synced. A loss of power keeps any subset of what was not synced, sector by sector, some of them
//! half written; what was synced stays.

// Each of the tests that share this uses a part of it.
#![allow(dead_code)]

mod vfs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// The unit in which disks write.
const SECTOR_BYTES: usize = 512;

/// What a disk does about writes and syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It works.
    #[default]
    Works,
    /// The next sync of a log fails, and what was written stays all the same.
    SyncFails,
    /// The next sync of a log fails, and what was written since the last one is gone.
    SyncLoses,
    /// Nothing can be written to a log.
    Full,
    /// Syncs are answered and not done.
    Lies,
}

/// The disk of one folder.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    mood: Mood,
    files: BTreeMap<PathBuf, File>,
    /// Writes, syncs and cuts so far.
    steps: u64,
    failures: u64,
    /// At this step the power goes.
    ends_at: Option<u64>,
    is_dead: bool,
}

/// What is durable of a file, and what has happened to it since.
#[derive(Debug, Default)]
struct File {
    durable: Option<Vec<u8>>,
    since: Vec<Change>,
    /// It was deleted, and its folder was not synced since: it may be there again.
    is_deleted: bool,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

/// What a disk answers to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Failed,
    Full,
    /// Failed, and the file is to be cut to what is durable.
    Lost,
}

impl Disk {
    /// The disk of this folder, from now on.
    pub(crate) fn under(folder: &Path) -> Self {
        let disk = Self(Arc::default());
        vfs::mount(folder, &disk);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes how it behaves.
    pub(crate) fn becomes(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// The power goes at this step, counted from the mounting of the disk.
    pub(crate) fn loses_power_at(&self, step: u64) {
        self.state().ends_at = Some(step);
    }

    /// The power goes now.
    pub(crate) fn loses_power(&self) {
        self.state().is_dead = true;
    }

    /// Whether the power is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Writes, syncs and cuts so far.
    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Syncs that failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Writes into another folder what is there when the power is back.
    pub(crate) fn after_power_loss(&self, into: &Path, random: &mut dyn FnMut() -> u64) {
        let state = self.state();
        let keeps = [0, 10, 50, 90, 100][(random() % 5) as usize];
        for (path, file) in &state.files {
            let name = path.file_name().expect("a file has a name");
            let is_gone = file.is_deleted && random().is_multiple_of(2);
            if let Some(bytes) = file.survives(keeps, random).filter(|_| !is_gone) {
                std::fs::write(into.join(name), bytes).expect("an image can be written");
            }
        }
        // The index of the log is shared memory: after a loss of power it is gone, or it is any old bytes.
        if random().is_multiple_of(2)
            && let Some(database) =
                state.files.keys().find(|path| path.extension().is_some_and(|it| it == "db"))
        {
            let name = database.file_name().expect("a file has a name").to_string_lossy().into_owned();
            let bytes: Vec<u8> = (0..32 << 10).map(|_| random() as u8).collect();
            std::fs::write(into.join(format!("{name}-shm")), bytes).expect("an image can be written");
        }
    }

    // What follows is called by the file system.

    fn opened(&self, path: &Path) {
        let mut state = self.state();
        if let Some(file) = state.files.get_mut(path) {
            file.is_deleted = false;
        } else {
            // What was there before was made durable by whoever made it; a new log is not there before its first sync.
            let durable = std::fs::read(path).ok().filter(|bytes| !bytes.is_empty() || is_database(path));
            state.files.insert(path.to_owned(), File { durable, ..File::default() });
        }
    }

    fn write(&self, path: &Path, at: usize, bytes: &[u8]) -> Answer {
        let mut state = self.state();
        if let Some(answer) = state.step(path, Mood::Full, Answer::Full) {
            return answer;
        }
        state.file(path).since.push(Change::Write(at, bytes.to_vec()));
        Answer::Done
    }

    fn cut(&self, path: &Path, length: usize) -> Answer {
        let mut state = self.state();
        if let Some(answer) =
            state.step(path, Mood::Works, Answer::Done).filter(|answer| *answer == Answer::Failed)
        {
            return answer;
        }
        state.file(path).since.push(Change::Cut(length));
        Answer::Done
    }

    fn sync(&self, path: &Path) -> Answer {
        let mut state = self.state();
        if let Some(answer) = state.step(path, Mood::SyncFails, Answer::Failed) {
            state.failed();
            return answer;
        }
        if !is_database(path) && state.mood == Mood::SyncLoses {
            state.failed();
            state.file(path).since.clear();
            return Answer::Lost;
        }
        if state.mood != Mood::Lies {
            // SQLite syncs the folder with the first sync of a new log or journal: what was deleted before is gone.
            if state.file(path).durable.is_none() {
                state.files.retain(|_, file| !file.is_deleted);
            }
            state.file(path).sync();
        }
        Answer::Done
    }

    fn durable_bytes(&self, path: &Path) -> usize {
        self.state().file(path).durable.as_ref().map_or(0, Vec::len)
    }

    fn deleted(&self, path: &Path, is_durable: bool) {
        let mut state = self.state();
        match is_durable {
            true => drop(state.files.remove(path)),
            false => state.file(path).is_deleted = true,
        }
    }
}

fn is_database(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "db")
}

impl State {
    fn file(&mut self, path: &Path) -> &mut File {
        self.files.entry(path.to_owned()).or_default()
    }

    /// Counts a step. `Some`: it does not happen.
    fn step(&mut self, path: &Path, mood: Mood, answer: Answer) -> Option<Answer> {
        self.steps += 1;
        if self.ends_at.is_some_and(|end| self.steps > end) {
            self.is_dead = true;
        }
        if self.is_dead {
            return Some(Answer::Failed);
        }
        (self.mood == mood && mood != Mood::Works && !is_database(path)).then_some(answer)
    }

    fn failed(&mut self) {
        self.failures += u64::from(!self.is_dead);
        if matches!(self.mood, Mood::SyncFails | Mood::SyncLoses) {
            self.mood = Mood::Works;
        }
    }
}

impl File {
    fn sync(&mut self) {
        let mut bytes = self.durable.take().unwrap_or_default();
        for change in self.since.drain(..) {
            change.apply(&mut bytes);
        }
        self.durable = Some(bytes);
    }

    /// What a loss of power leaves: each sector that was written since the last sync is kept with this chance in 100.
    fn survives(&self, keeps: u64, random: &mut dyn FnMut() -> u64) -> Option<Vec<u8>> {
        let mut bytes = self.durable.clone();
        for change in &self.since {
            match change {
                Change::Cut(length) if random() % 100 < keeps => {
                    Change::Cut(*length).apply(bytes.get_or_insert_default());
                }
                Change::Cut(_) => {}
                Change::Write(at, written) => {
                    for (at, piece) in sectors(*at, written) {
                        if random() % 100 >= keeps {
                            continue;
                        }
                        // One in eight is half written: its beginning or its end is there.
                        let (from, to) = match random() % 16 {
                            0 => (0, random() as usize % (piece.len() + 1)),
                            1 => (random() as usize % (piece.len() + 1), piece.len()),
                            _ => (0, piece.len()),
                        };
                        Change::Write(at + from, piece[from..to].to_vec())
                            .apply(bytes.get_or_insert_default());
                    }
                }
            }
        }
        bytes
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Cut(length) => bytes.truncate(*length),
            Change::Write(at, written) => {
                if bytes.len() < at + written.len() {
                    bytes.resize(at + written.len(), 0);
                }
                bytes[*at..at + written.len()].copy_from_slice(written);
            }
        }
    }
}

/// A write as the sectors that it touches.
fn sectors(at: usize, written: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut at, mut rest, mut pieces) = (at, written, Vec::new());
    while !rest.is_empty() {
        let length = (SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len());
        let (piece, after) = rest.split_at(length);
        pieces.push((at, piece));
        (at, rest) = (at + length, after);
    }
    pieces
}
