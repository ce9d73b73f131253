//! Every call into the operating system that needs `unsafe`: signals, accounts, and children that die with
//! their parent. Decides nothing; no other file of this crate says `unsafe`.

use std::ffi::CString;
use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signal that arrived since [`Interrupts::watch`]; 0 is none.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

const WATCHED: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// While this lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process, so that servers can
/// be stopped and folders removed first. Dropping it restores what was before.
pub struct Interrupts {
    before: [libc::sighandler_t; WATCHED.len()],
}

impl Interrupts {
    pub fn watch() -> Self {
        ARRIVED.store(0, Ordering::SeqCst);
        let note = note as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        let before = WATCHED.map(|signal| unsafe { libc::signal(signal, note) });
        Interrupts { before }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, handler) in WATCHED.into_iter().zip(self.before) {
            // SAFETY: the handler is the one that was installed before ours.
            unsafe { libc::signal(signal, handler) };
        }
    }
}

extern "C" fn note(signal: i32) {
    ARRIVED.store(signal, Ordering::SeqCst);
}

/// The signal that asked us to stop, if one did while [`Interrupts`] watched.
pub fn interrupted() -> Option<i32> {
    match ARRIVED.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// Makes the child receive `signal` when the calling thread ends, however it ends. Linux only: elsewhere
/// this does nothing, and a killed xtask leaves its children behind.
///
/// Call it from the main thread: Linux counts the end of the spawning *thread* as the parent's death. The
/// kernel forgets the wish when the user id changes; `Command` changes the user before it runs this closure.
pub fn die_with_parent(command: &mut Command, signal: i32) {
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        // SAFETY: prctl and getppid are async-signal-safe, and building an error from a number allocates nothing.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died between fork and prctl; then nobody would ever signal us.
                if u32::try_from(libc::getppid()) != Ok(parent) {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (command, signal);
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A user to run a server as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// Looks a user up by name.
pub fn account(name: &str) -> Option<Account> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a valid C string, and the static buffer that getpwnam returns is read before any
    // other call could overwrite it: only the main thread of this program looks users up.
    unsafe {
        let entry = libc::getpwnam(name.as_ptr());
        if entry.is_null() {
            return None;
        }
        Some(Account { uid: (*entry).pw_uid, gid: (*entry).pw_gid })
    }
}

/// True while a process with this id exists, whoever owns it.
pub fn is_alive(pid: u32) -> bool {
    match send(pid, 0) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPERM),
    }
}

/// Sends a signal to one process.
pub fn send(pid: u32, signal: i32) -> io::Result<()> {
    kill(i32::try_from(pid).map_err(io::Error::other)?, signal)
}

/// Sends a signal to a process group, which is named by its leader.
pub fn send_to_group(leader: u32, signal: i32) -> io::Result<()> {
    kill(-i32::try_from(leader).map_err(io::Error::other)?, signal)
}

fn kill(target: i32, signal: i32) -> io::Result<()> {
    // A target of 0, 1 or -1 would reach processes that are not ours.
    assert!(target.abs() > 1, "a signal goes to a child, never to everyone");
    // SAFETY: kill has no memory preconditions.
    match unsafe { libc::kill(target, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Signals reach the whole process: a test that raises one and a test that heeds them take turns.
#[cfg(test)]
pub(crate) fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_an_account_and_nonsense_is_not() {
        assert_eq!(account("root").map(|found| found.uid), Some(0));
        assert_eq!(account("no-such-user-here"), None);
        assert_eq!(account("nul\0inside"), None);
    }

    #[test]
    fn this_process_is_alive_and_an_impossible_one_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(i32::MAX as u32));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_dies_with_the_thread_that_spawned_it() {
        use std::os::unix::process::ExitStatusExt;

        // Not SIGINT nor SIGQUIT: what a shell starts in the background ignores them, and so do its children.
        let spawn = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            die_with_parent(&mut command, libc::SIGTERM);
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(spawn).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_watched_signal_is_noted_instead_of_ending_the_process() {
        let _turn = one_at_a_time();
        let watch = Interrupts::watch();
        assert_eq!(interrupted(), None);
        send(std::process::id(), libc::SIGHUP).unwrap();
        // The signal is for the process: any thread may take it, so it may arrive a moment later.
        for _ in 0..1000 {
            if interrupted().is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(interrupted(), Some(libc::SIGHUP));
        drop(watch);
        ARRIVED.store(0, Ordering::SeqCst);
    }
}
