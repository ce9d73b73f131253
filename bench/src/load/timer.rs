//! A clock that epoll can wait for, finer than its own milliseconds: an open loop needs it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A timer that is readable once its time has come.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> io::Result<Timer> {
        // SAFETY: no pointers are passed; the result is checked before it is used.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and belongs to nobody else.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable after so many nanoseconds, at least one.
    pub(super) fn set(&self, nanoseconds: u64) -> io::Result<()> {
        let nanoseconds = nanoseconds.max(1);
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let after = libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
        };
        let setting = libc::itimerspec { it_interval: never, it_value: after };
        // SAFETY: the descriptor is a timer that we own, and the setting lives through the call.
        let result = unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &setting, std::ptr::null_mut()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}
