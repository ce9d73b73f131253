//! Replicas of the relay, as processes on one PostgreSQL.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::service::{LATE_WINDOW, Service, TIERS};
use crate::world::{Folder, Relay};

const REPLICAS: usize = 3;
pub(crate) const PRINCIPALS: [&str; 4] = ["anna", "bert", "cleo", "dirk"];
/// Longer than a lease.
const FROZEN_FOR: Duration = Duration::from_secs(33);

struct Slot {
    relay: Option<Relay>,
    /// When it wakes.
    frozen: Option<Instant>,
}

/// The replicas, and who stands in for those that are killed.
pub(crate) struct Fleet {
    folders: Vec<Folder>,
    args: [String; 4],
    slots: Vec<Mutex<Slot>>,
}

impl Fleet {
    pub(crate) fn start(service: &Service, store: &str, redis: &str) -> Self {
        let args = ["--store", store, "--redis", redis].map(str::to_owned);
        let folders: Vec<Folder> = (0..REPLICAS).map(|at| Folder::with(&config(service, at))).collect();
        for folder in &folders {
            for principal in PRINCIPALS {
                folder.write(principal, &service.token(principal));
            }
        }
        let start = |folder: &Folder| Slot { relay: Some(start(folder, &args)), frozen: None };
        let slots = folders.iter().map(|folder| Mutex::new(start(folder))).collect();
        Self { folders, args, slots }
    }

    /// Where a replica listens; another one with each attempt.
    pub(crate) fn listen(&self, attempt: usize) -> Option<SocketAddr> {
        let all: Vec<SocketAddr> = self.slots.iter().filter_map(|slot| awake(slot, |up| up.listen)).collect();
        (!all.is_empty()).then(|| all[attempt % all.len()])
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        let admin = self.slots.iter().find_map(|slot| awake(slot, |up| up.admin));
        admin.expect("a replica runs and is awake")
    }

    /// Whether every replica runs and is awake.
    pub(crate) fn is_whole(&self) -> bool {
        self.slots.iter().all(|slot| {
            let slot = slot.lock().unwrap();
            slot.relay.is_some() && slot.frozen.is_none()
        })
    }

    /// kill -9. Returns when it is gone.
    pub(crate) fn kill(&self, at: usize) {
        let mut slot = self.slots[at].lock().unwrap_or_else(PoisonError::into_inner);
        slot.frozen = None;
        if let Some(relay) = slot.relay.take() {
            relay.kill();
        }
    }

    /// Freezes one, unless another is frozen. Says whether it did.
    pub(crate) fn freeze(&self, at: usize) -> bool {
        if self.slots.iter().any(|slot| slot.lock().unwrap().frozen.is_some()) {
            return false;
        }
        let mut slot = self.slots[at].lock().unwrap();
        let Some(relay) = &slot.relay else { return false };
        signal(relay, libc::SIGSTOP);
        slot.frozen = Some(Instant::now() + FROZEN_FOR);
        true
    }

    /// Starts what was killed, wakes what was frozen for long enough. Nobody else starts one, and a slot is not locked
    /// meanwhile: those who only ask where a replica is must not wait for it.
    pub(crate) fn mend(&self) {
        for (slot, folder) in self.slots.iter().zip(&self.folders) {
            let is_gone = slot.lock().unwrap().relay.is_none();
            let fresh =
                is_gone.then(|| folder.try_start_with(&self.args.each_ref().map(String::as_str))).flatten();
            let mut slot = slot.lock().unwrap();
            if fresh.is_some() {
                slot.relay = fresh;
            }
            if slot.frozen.is_some_and(|until| Instant::now() >= until) {
                slot.frozen = None;
                if let Some(relay) = &slot.relay {
                    signal(relay, libc::SIGCONT);
                }
            }
        }
    }

    /// Ends all of them.
    pub(crate) fn end(&self) {
        for at in 0..REPLICAS {
            self.kill(at);
        }
    }

    /// Gives a principal a new credential, which the service takes.
    pub(crate) fn renew(&self, service: &Service, principal: &str) {
        let token = service.new_token(principal);
        for folder in &self.folders {
            folder.write(principal, &token);
        }
    }
}

/// Something of a slot's replica, if it runs and is awake.
fn awake(slot: &Mutex<Slot>, what: fn(&Relay) -> SocketAddr) -> Option<SocketAddr> {
    let slot = slot.lock().unwrap();
    slot.relay.as_ref().filter(|_| slot.frozen.is_none()).map(what)
}

fn start(folder: &Folder, args: &[String; 4]) -> Relay {
    folder.start_with(&args.each_ref().map(String::as_str))
}

fn signal(relay: &Relay, number: i32) {
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, number) }, 0);
}

fn config(service: &Service, replica: usize) -> String {
    let mut text = "identity = \"trusted:X-User\"\n[relay]\ndebounce = \"200ms\"\n".to_owned();
    for tier in TIERS {
        let at = format!("http://{}/{tier}/{{lane}}", service.address);
        let read = format!("url = \"{at}\", headers = {{ x-replica = \"{replica}\" }}, value = \"/score\"");
        let (body, headers, read, more) = match tier {
            "key" => {
                ("add\":{delta}", ", x-key = \"{key}\"", String::new(), "key_retention = \"1h\"".to_owned())
            }
            "marker" => (
                "marker\":\"{marker}\",\"score\":{after}",
                "",
                format!("read = {{ {read}, marker = \"/markers\" }}"),
                String::new(),
            ),
            "compare-and-set" => (
                "score\":{after}",
                ", if-match = \"{version}\"",
                format!("read = {{ {read}, version = \"/version\" }}"),
                String::new(),
            ),
            "read-back" => ("score\":{after}", "", format!("read = {{ {read} }}"), String::new()),
            _ => ("add\":{delta}", "", String::new(), "on_blind = \"at-most-once\"".to_owned()),
        };
        text += &format!(
            "[relay.target.{tier}]\nurl = \"{at}\"\nbody = '{{{{\"{body}}}}}'\nheaders = {{ x-replica = \"{replica}\"{headers} }}\n\
             tier = \"{tier}\"\nlate_window = \"{}s\"\ntimeout = \"1s\"\nsync_deadline = \"1s\"\nblocked = [\"418\"]\n\
             blocked_wait = \"1s\"\n{read}\n{more}\n",
            LATE_WINDOW.as_secs()
        );
        for principal in PRINCIPALS {
            text += &format!(
                "[[relay.credential]]\ntarget = \"{tier}\"\nprincipal = \"{principal}\"\nfile = \"{principal}\"\n"
            );
        }
    }
    text
}

/// Ends the replicas with the test, however it ends: threads of the service may outlive it.
pub(crate) struct Ended(pub(crate) Arc<Fleet>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}
