//! The signals that a gate listens to: told to end, it ends; told to read its settings anew, it does.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify;
use super::running::Running;
use crate::exit::Stop;

/// The signals that matter.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Ends when the process is told to end.
    pub(crate) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Lets settings be read anew until the process is told to end.
    pub(crate) async fn until_end(&mut self, running: &mut Running) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {}
            }
            notify::tell(&notify::reloading());
            match running.reload().await {
                Ok(()) => tracing::info!("the configuration was read anew and is in force"),
                Err(Stop { message, .. }) => {
                    tracing::error!("the configuration was refused, the old one stays: {message}");
                }
            }
            notify::tell(notify::READY);
        }
    }
}
