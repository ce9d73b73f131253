//! The owner of the file: the outbox at work, its host, and the socket at which other processes hand over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::presets;
use semel_delivery::http1::Http1;
use semel_delivery::url::Target;
use semel_delivery::{HeadPolicy, Outbox, OutboxError, Sending, Settings};
use semel_store::sqlite::OpenError;
use tokio::task::JoinHandle;

use crate::calls::{self, Answer, Call};
use crate::errors::CoreError;
use crate::host::{Blocking, Bridge, Host};
use crate::link;
use crate::types::Options;

/// How long attempts that run may take when the outbox is closed.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// An outbox at work.
pub(crate) struct Owner {
    pub(crate) outbox: Outbox,
    sending: Option<Sending>,
    server: Option<JoinHandle<()>>,
}

/// What came of an attempt to own the file.
pub(crate) enum Opened {
    Owner(Box<Owner>),
    /// Another process owns it.
    Taken,
}

/// The settings that these options mean.
pub(crate) fn settings(options: &Options, bridge: &Arc<Bridge>) -> Result<Settings, CoreError> {
    let unavailable = |reason: String| CoreError::Unavailable { reason };
    let mut profile = presets::preset(&options.profile)
        .ok_or_else(|| unavailable(format!("there is no profile {:?}", options.profile)))?;
    if let Some(age) = options.max_age_millis {
        profile.schedule.max_age = Some(Duration::from_millis(age));
    }
    let upstream = options.base_url.as_deref().map(Target::absolute).transpose();
    let transport = match &options.trust_file {
        None => Http1::new(),
        Some(path) => Http1::trusting_file(Path::new(path)).map_err(|why| unavailable(why.to_string()))?,
    };
    let usual = Settings::default();
    Ok(Settings {
        profile,
        upstream: upstream.map_err(|error| unavailable(format!("base_url: {error}")))?,
        head: if options.blocks_on_dead { HeadPolicy::Block } else { HeadPolicy::Skip },
        attempt_timeout: options.attempt_timeout_millis.map_or(usual.attempt_timeout, Duration::from_millis),
        max_age_is_chosen: options.max_age_millis.is_some(),
        transport: Arc::new(transport),
        credentials: Arc::clone(bridge) as _,
        hooks: Arc::clone(bridge) as _,
        ..usual
    })
}

impl Owner {
    /// Opens the file, begins to send, and listens for other processes.
    pub(crate) async fn open(
        options: &Options,
        host: &Arc<dyn Host>,
        blocking: Arc<dyn Blocking>,
    ) -> Result<Opened, CoreError> {
        let bridge = Arc::new(Bridge::new(Arc::clone(host), options.needs_credentials, blocking));
        let settings = settings(options, &bridge)?;
        let outbox = match Outbox::open(&options.path, settings).await {
            Ok(outbox) => outbox,
            Err(OutboxError::Open(OpenError::Locked { .. })) => return Ok(Opened::Taken),
            Err(error) => return Err(error.into()),
        };
        let mut owner = Self::at_work(outbox);
        let outbox = owner.outbox.clone();
        owner.server = link::listen(Path::new(&options.path), move |call| {
            let outbox = outbox.clone();
            async move { calls::carry_out(&outbox, call).await }
        });
        Ok(Opened::Owner(Box::new(owner)))
    }

    /// An outbox that sends, and that nobody else can reach.
    pub(crate) fn at_work(outbox: Outbox) -> Self {
        let sending = Some(outbox.start());
        Self { outbox, sending, server: None }
    }

    pub(crate) async fn carry_out(&self, call: Call) -> Result<Answer, CoreError> {
        calls::carry_out(&self.outbox, call).await
    }

    /// Begins nothing new, waits a little for what runs, and gives the file back.
    pub(crate) async fn close(mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
        if let Some(sending) = self.sending.take() {
            sending.stop(STOP_WITHIN).await;
        }
    }
}
