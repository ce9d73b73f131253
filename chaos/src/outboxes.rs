//! The outbox daemons: two, each with a file of its own, sending through one of the gateways. The disk of the first can be
//! told to fail its syncs; that of the second can be filled. The clocks of both can be set.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use semel_testbed::os;

use super::preload::{Machine, Preload};
use super::processes::{Processes, Start, semel};
use super::proxy::Proxy;

/// How many there are.
pub(crate) const OUTBOXES: usize = 2;
/// The word that callers must know.
pub(crate) const TOKEN: &str = "chaos-token";
/// The size of the small disk: what a write-ahead log may come to, and what an outbox keeps of every minute, with room to
/// spare, so that it is full only when it is filled.
const DISK_MIB: u64 = 64;
const DISK_MIB_A_MINUTE: u64 = 32;
const DISK_MIB_MAX: u64 = 1024;

/// The daemons and what can be done to their disks.
pub(crate) struct Outboxes {
    pub(crate) processes: Processes,
    machines: Vec<Machine>,
    /// The small disk of the second; `None` where nobody may mount one.
    disk: Option<Disk>,
}

/// A small disk of its own (tmpfs).
struct Disk {
    place: PathBuf,
    bytes: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still has a file open there is killed first; lazily, so that nothing is left mounted.
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

impl Outboxes {
    pub(crate) fn start(
        folder: &Path,
        preload: &Preload,
        gates: &[&Proxy],
        credential: &Path,
        lasts: Duration,
        planted: Option<&str>,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("failed to prepare the outboxes: {error}");
        let token = folder.join("token");
        fs::write(&token, TOKEN).map_err(failed)?;
        let machines: Vec<Machine> =
            (0..OUTBOXES).map(|number| preload.machine(&format!("outbox-{number}"))).collect();
        let disk = small_disk(folder, lasts);
        let start = |number: usize| -> Start {
            let own = folder.join(format!("outbox-{number}"));
            let _ = fs::create_dir_all(&own);
            let log = folder.join(format!("outbox-{number}.log"));
            let (credential, token) = (credential.display().to_string(), token.display().to_string());
            let upstream = format!("http://127.0.0.1:{}", gates[number % gates.len()].port());
            let machine = machines[number].clone();
            let planted = planted.map(str::to_owned);
            Box::new(move |port| {
                let mut command = semel(&log, planted.as_deref());
                command
                    .args(["serve", "outbox", "--store"])
                    .arg(format!("sqlite:{}/outbox.db", own.display()));
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--token-file", &token]);
                command.args(["--upstream", &upstream, "--credential", &format!("file:{credential}")]);
                command.args(["--attempt-timeout", "5s"]);
                machine.take(&mut command);
                command
            })
        };
        let processes = Processes::start((0..OUTBOXES).map(start).collect())?;
        Ok(Self { processes, machines, disk })
    }

    /// The syncs of the first fail, or work again. `false`: that cannot be done here.
    pub(crate) fn fail_syncs(&self, fails: bool) -> bool {
        self.machines[0].fail_syncs(fails)
    }

    /// The machine of one.
    pub(crate) fn machine(&self, number: usize) -> &Machine {
        &self.machines[number]
    }

    /// All of them.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Fills the disk of the second, or empties it again. `false`: that cannot be done here.
    pub(crate) fn fill_disk(&self, full: bool) -> bool {
        let Some(Disk { place, bytes }) = &self.disk else { return false };
        let ballast = place.join("ballast");
        if full {
            // It ends with an error, once there is no room.
            let _ = fs::File::create(&ballast)
                .and_then(|mut file| io::copy(&mut io::repeat(0).take(*bytes), &mut file));
        } else {
            let _ = fs::remove_file(&ballast);
        }
        true
    }
}

/// The folder of the second outbox as a disk of its own, where root may do that.
fn small_disk(folder: &Path, lasts: Duration) -> Option<Disk> {
    let place = folder.join("outbox-1");
    fs::create_dir_all(&place).ok()?;
    if !os::is_root() {
        return None;
    }
    // It is memory.
    let mib = (DISK_MIB + DISK_MIB_A_MINUTE * lasts.as_secs().div_ceil(60)).min(DISK_MIB_MAX);
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]);
    mount.arg(&place).stderr(std::process::Stdio::null());
    mount.status().ok().filter(std::process::ExitStatus::success).map(|_| Disk { place, bytes: mib << 20 })
}
