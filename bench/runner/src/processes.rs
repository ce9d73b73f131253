//! What processes cost: processor time, bytes to the disk, memory, syncs. Read from /proc and, for syncs, counted by
//! the kernel's trace points through `perf stat`, which slows nothing down that can be measured here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use semel_testbed::{os, process};

/// What a set of processes has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) cpu_seconds: f64,
    /// Without what went into their logs.
    pub(crate) disk_bytes: f64,
}

/// These processes and everything that descends from them.
pub(crate) fn families(leaders: &[u32]) -> Vec<u32> {
    let mut members: BTreeSet<u32> = leaders.iter().copied().collect();
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid)?.get(1)?.parse().ok()?))
        })
        .collect();
    loop {
        let before = members.len();
        members.extend(
            parents
                .iter()
                .filter(|(_, parent)| members.contains(parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if members.len() == before {
            return members.into_iter().collect();
        }
    }
}

/// What they have used so far, children that ended included.
pub(crate) fn used(pids: &[u32]) -> Used {
    let mut used = Used::default();
    for pid in pids {
        let fields = stat(*pid).unwrap_or_default();
        // utime, stime, cutime and cstime, in hundredths of a second.
        let ticks: f64 = (11..15).filter_map(|place| fields.get(place)?.parse::<f64>().ok()).sum();
        used.cpu_seconds += ticks / 100.0;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse::<f64>().ok());
        used.disk_bytes += written.unwrap_or(0.0);
    }
    let logs: BTreeMap<u64, u64> = pids.iter().filter_map(|pid| log_of(*pid)).collect();
    used.disk_bytes -= logs.values().map(|bytes| *bytes as f64).sum::<f64>();
    used
}

/// The number of the file that a process logs to, and how long it is, where it is a file. Several processes may share one.
fn log_of(pid: u32) -> Option<(u64, u64)> {
    let file = fs::metadata(format!("/proc/{pid}/fd/2")).ok().filter(fs::Metadata::is_file)?;
    Some((file.ino(), file.len()))
}

/// Their resident memory in megabytes.
pub(crate) fn resident_mb(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok())
    };
    pids.iter().filter_map(of).sum::<f64>() / 1024.0
}

/// The fields of /proc/PID/stat behind the name, which may hold anything: the first is the state.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Counts the syncs of processes while it lives.
pub(crate) struct Syncs {
    perf: Option<Child>,
    file: PathBuf,
}

impl Syncs {
    pub(crate) fn count(pids: &[u32], folder: &Path) -> Syncs {
        let file = folder.join("syncs.csv");
        let _ = fs::remove_file(&file);
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut perf = Command::new("perf");
        perf.args([
            "stat",
            "-x",
            ",",
            "-e",
            "syscalls:sys_enter_fsync,syscalls:sys_enter_fdatasync",
            "-p",
            &list,
        ]);
        perf.arg("-o").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        os::die_with_parent(&mut perf, libc::SIGKILL);
        Syncs { perf: perf.spawn().ok(), file }
    }

    /// How many there were; none where the kernel or a missing `perf` does not tell.
    pub(crate) fn finish(mut self) -> Option<f64> {
        let mut perf = self.perf.take()?;
        let _ = os::send(perf.id(), libc::SIGINT);
        process::wait_or_kill(&mut perf);
        let text = fs::read_to_string(&self.file).ok()?;
        let counts: Vec<f64> = text.lines().filter_map(|line| line.split(',').next()?.parse().ok()).collect();
        (counts.len() == 2).then(|| counts.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_belongs_to_the_family_and_its_time_is_counted() {
        let mut child = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let family = families(&[child.id()]);
        assert!(family.len() == 2 && family.contains(&child.id()), "{family:?}");
        for pid in family {
            os::send(pid, libc::SIGKILL).unwrap();
        }
        child.wait().unwrap();
        let own = [std::process::id()];
        assert!(resident_mb(&own) > 0.5 && used(&own).cpu_seconds < 600.0);
    }
}
