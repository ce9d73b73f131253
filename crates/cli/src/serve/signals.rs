//! The signals that a part listens to: told to end, it ends; told to read its settings anew, it does.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify;
use super::running::Running;
use crate::exit::Stop;

/// What is logged once settings that were read anew are in force.
pub(crate) const IN_FORCE: &str = "the configuration was read anew and is in force";

/// Something whose settings can be read anew while it runs.
pub(crate) trait Reload {
    /// Reads them and puts them in force at once, or changes nothing. Returns what is then logged.
    async fn reload(&mut self) -> Result<String, Stop>;
}

impl Reload for Running {
    async fn reload(&mut self) -> Result<String, Stop> {
        Running::reload(self).await.map(|()| IN_FORCE.to_owned())
    }
}

/// The signals that ask for an end.
pub(crate) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Ends when the process is told to end.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The signals that matter to what reads its settings anew.
pub(crate) struct Signals {
    end: EndSignals,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { end: EndSignals::listen()?, hang_up: signal(SignalKind::hangup())? })
    }

    /// Ends when the process is told to end.
    pub(crate) async fn end(&mut self) {
        self.end.next().await;
    }

    /// Lets settings be read anew until the process is told to end.
    pub(crate) async fn until_end(&mut self, running: &mut impl Reload) {
        loop {
            tokio::select! {
                () = self.end.next() => return,
                _ = self.hang_up.recv() => {}
            }
            notify::tell(&notify::reloading());
            match running.reload().await {
                Ok(done) => tracing::info!("{done}"),
                Err(Stop { message, .. }) => {
                    tracing::error!("the configuration was refused, the old one stays: {message}");
                }
            }
            notify::tell(notify::READY);
        }
    }
}
