//! The outbox as applications call it. Owns the runtime, the role of this process for its file, and what a fork means.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_contract::profile::presets;
use semel_delivery::Entropy;
use tokio::runtime::Runtime;
use tokio::sync::{RwLock, oneshot, watch};

use crate::calls::{self, Answer, Call, Name};
use crate::errors::CoreError;
use crate::host::{Blocking, Host, Uncounted};
use crate::import::{self, Route};
use crate::link;
use crate::owner::{Opened, Owner};
use crate::types::{Accepted, Event, Imported, LaneState, Message, Options, Receipt, Status};

/// How long a process tries to reach an owner, or to become it.
const HAND_OVER_TRIES_MAX: u32 = 100;
const HAND_OVER_PAUSE: Duration = Duration::from_millis(50);
/// How long a program that ends waits for the library's threads.
const AT_EXIT: Duration = Duration::from_secs(2);

/// An outbox in one file.
#[derive(uniffi::Object)]
pub struct Core {
    process: u32,
    inner: Option<Inner>,
}

struct Inner {
    work: Work,
    state: Arc<State>,
}

/// Carries out work somewhere else than in threads of its own.
#[cfg(feature = "lab")]
pub(crate) trait Runner: Send + Sync {
    fn run(&self, work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// Where calls are carried out.
enum Work {
    Threads(Mutex<Option<Runtime>>),
    #[cfg(feature = "lab")]
    Elsewhere(Arc<dyn Runner>),
}

struct State {
    options: Options,
    host: Arc<dyn Host>,
    role: RwLock<Role>,
    /// Says to calls that only wait that the outbox closes: none of them holds it up.
    closing: watch::Sender<bool>,
}

/// What this process is to the file.
enum Role {
    Owner(Box<Owner>),
    Guest,
    Closed,
}

/// A call outlives whoever waits for it: it is carried out by the runtime, and only its answer is awaited here.
async fn answered<T>(answer: oneshot::Receiver<T>) -> Result<T, CoreError> {
    answer.await.map_err(|_| closed())
}

fn closed() -> CoreError {
    CoreError::Closed { reason: "the outbox was closed: open it again".to_owned() }
}

#[uniffi::export]
impl Core {
    /// Opens a file, or creates it, and begins to send. Where another process owns it, calls are handed over to that one.
    #[uniffi::constructor]
    pub fn open(options: Options, host: Arc<dyn Host>) -> Result<Arc<Self>, CoreError> {
        let unavailable = |error: std::io::Error| CoreError::Unavailable { reason: error.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("semel-outbox")
            .enable_all()
            .build()
            .map_err(unavailable)?;
        let opened = runtime.block_on(Owner::open(&options, &host, Arc::new(Uncounted)))?;
        let role = match opened {
            Opened::Owner(owner) => Role::Owner(owner),
            Opened::Taken => Role::Guest,
        };
        let is_guest = matches!(role, Role::Guest);
        let state =
            Arc::new(State { options, host, role: RwLock::new(role), closing: watch::Sender::new(false) });
        if is_guest {
            runtime.spawn(succeed(Arc::downgrade(&state)));
        }
        let inner = Inner { work: Work::Threads(Mutex::new(Some(runtime))), state };
        Ok(Arc::new(Self { process: std::process::id(), inner: Some(inner) }))
    }

    /// Accepts a message. Once this returns, a restart finds it; a caller that goes away meanwhile changes nothing.
    pub async fn send(&self, message: Message) -> Result<Accepted, CoreError> {
        let mut message = message;
        let is_minted = message.id.is_none();
        if is_minted {
            let profile = presets::preset(&self.inner()?.state.options.profile);
            let profile = profile.unwrap_or_else(presets::ietf);
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            message.id = Some(calls::mint(&profile, Entropy::system().bits(), now.as_millis() as i64));
        }
        match self.call(Call::Send(message)).await? {
            Answer::Accepted(accepted) => Ok(*accepted),
            other => Err(unexpected(&other)),
        }
    }

    /// A message by its id; `principal` and `operation` where its id is somebody's for one kind of action.
    pub async fn get(
        &self,
        id: String,
        principal: Option<String>,
        operation: Option<String>,
    ) -> Result<Option<Receipt>, CoreError> {
        self.receipt(Call::Get(name(id, principal, operation))).await
    }

    /// Waits until a message is finished, at most so long, and returns it as it is then.
    pub async fn wait(
        &self,
        id: String,
        principal: Option<String>,
        operation: Option<String>,
        at_most_millis: u64,
    ) -> Result<Receipt, CoreError> {
        let found = self.receipt(Call::Wait { name: name(id, principal, operation), at_most_millis }).await?;
        found.ok_or_else(|| CoreError::NotFound { reason: "the message is gone".to_owned() })
    }

    /// Messages in the order of acceptance, above this number.
    pub async fn list(
        &self,
        status: Option<Status>,
        lane: Option<String>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Receipt>, CoreError> {
        match self.call(Call::List { status, lane, after, limit }).await? {
            Answer::Receipts(receipts) => Ok(receipts),
            other => Err(unexpected(&other)),
        }
    }

    /// Events above this number. Where there is none yet, it waits for one, at most so long.
    pub async fn events(&self, after: i64, limit: u32, wait_millis: u64) -> Result<Vec<Event>, CoreError> {
        match self.call(Call::Events { after, limit, wait_millis }).await? {
            Answer::Events(events) => Ok(events),
            other => Err(unexpected(&other)),
        }
    }

    /// Lanes with something waiting, paused or blocked.
    pub async fn lanes(&self) -> Result<Vec<LaneState>, CoreError> {
        match self.call(Call::Lanes).await? {
            Answer::Lanes(lanes) => Ok(lanes),
            other => Err(unexpected(&other)),
        }
    }

    /// Tries a message that waits for its next attempt at once.
    pub async fn retry(
        &self,
        id: String,
        principal: Option<String>,
        operation: Option<String>,
    ) -> Result<(), CoreError> {
        self.done(Call::Retry(name(id, principal, operation))).await
    }

    /// Takes a message back. One that is being sent or was delivered cannot be taken back.
    pub async fn abort(
        &self,
        id: String,
        principal: Option<String>,
        operation: Option<String>,
        why: String,
    ) -> Result<(), CoreError> {
        self.done(Call::Abort { name: name(id, principal, operation), why }).await
    }

    /// Puts a new message with the same request in the place of one that waits or was given up.
    pub async fn requeue(
        &self,
        id: String,
        principal: Option<String>,
        operation: Option<String>,
        new_id: Option<String>,
        force: bool,
    ) -> Result<Receipt, CoreError> {
        let uuid = || {
            semel_contract::profile::Generator::Uuid4
                .mint(Entropy::system().bits(), semel_contract::time::Timestamp::from_millis(0))
        };
        let new_id = new_id.unwrap_or_else(|| uuid().as_str().to_owned());
        let call = Call::Requeue { name: name(id, principal, operation), new_id, force };
        let found = self.receipt(call).await?;
        found.ok_or_else(|| CoreError::NotFound { reason: "the message is gone".to_owned() })
    }

    /// Sends no more from a lane. It outlives restarts.
    pub async fn pause(&self, lane: String) -> Result<(), CoreError> {
        self.done(Call::Pause(lane)).await
    }

    /// Sends from a lane again, past a message that was given up or waits for a rebuild as well.
    pub async fn resume(&self, lane: String) -> Result<(), CoreError> {
        self.done(Call::Resume(lane)).await
    }

    /// A principal has a fresh credential: what waits for it goes on.
    pub async fn sign_in(&self, principal: String) -> Result<(), CoreError> {
        self.done(Call::SignIn(principal)).await
    }

    /// A principal has left: its messages are parked, and never deleted.
    pub async fn sign_out(&self, principal: String) -> Result<(), CoreError> {
        self.done(Call::SignOut(principal)).await
    }

    /// The network may be back, or a credential fresh: what waits for that is tried at once.
    pub async fn kick(&self) -> Result<(), CoreError> {
        self.done(Call::Kick).await
    }

    /// A person says that the clock of the machine is right: expiry goes on by it.
    pub async fn confirm_clock(&self, reason: String) -> Result<(), CoreError> {
        self.done(Call::ConfirmClock(reason)).await
    }

    /// Makes messages of the rows of an older queue's table; see the guide for its form. Doing it again makes none twice.
    pub async fn import_queue(
        &self,
        file: String,
        table: String,
        routes: Vec<Route>,
    ) -> Result<Imported, CoreError> {
        let read = move || import::read(std::path::Path::new(&file), &table, &routes);
        let rows = match &self.inner()?.work {
            Work::Threads(_) => {
                let (told, answer) = oneshot::channel();
                self.spawn(async move {
                    let _ = told.send(tokio::task::spawn_blocking(read).await);
                })?;
                answered(answer)
                    .await?
                    .map_err(|error| CoreError::Unavailable { reason: error.to_string() })??
            }
            #[cfg(feature = "lab")]
            Work::Elsewhere(_) => read()?,
        };
        let mut done = Imported { imported: 0, known: 0 };
        for message in rows {
            match self.send(message).await {
                Ok(accepted) if accepted.was_known => done.known += 1,
                Ok(_) => done.imported += 1,
                // It was imported before, and has been given up or changed meanwhile: it is not lost, and not new.
                Err(CoreError::Refused { code, .. }) if code == "id-spent" || code == "id-reused" => {
                    done.known += 1
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Whether this process owns the file.
    pub async fn is_owner(&self) -> Result<bool, CoreError> {
        let state = Arc::clone(&self.inner()?.state);
        Ok(matches!(&*state.role.read().await, Role::Owner(_)))
    }

    /// Begins nothing new, waits a little for what runs, and gives the file back. What is left is sent after the next start.
    pub async fn stop(&self) -> Result<(), CoreError> {
        let state = Arc::clone(&self.inner()?.state);
        let (told, answer) = oneshot::channel();
        let closing = async move {
            state.close().await;
            let _ = told.send(());
        };
        if self.spawn(closing).is_ok() {
            answered(answer).await?;
        }
        if let Work::Threads(runtime) = &self.inner()?.work
            && let Some(runtime) = runtime.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            runtime.shutdown_background();
        }
        Ok(())
    }
}

#[uniffi::export]
impl Core {
    /// The same for a program that ends: it blocks, and after it the library asks the host nothing more.
    pub fn stop_at_exit(&self) {
        let Ok(inner) = self.inner() else { return };
        let runtime = match &inner.work {
            Work::Threads(runtime) => runtime,
            #[cfg(feature = "lab")]
            Work::Elsewhere(_) => return,
        };
        let Some(runtime) = runtime.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let state = Arc::clone(&inner.state);
        runtime.block_on(async move { state.close().await });
        runtime.shutdown_timeout(AT_EXIT);
    }
}

impl Core {
    #[cfg(feature = "lab")]
    pub(crate) fn run_elsewhere(
        runner: Arc<dyn Runner>,
        options: Options,
        host: Arc<dyn Host>,
        owner: Owner,
    ) -> Arc<Self> {
        let role = RwLock::new(Role::Owner(Box::new(owner)));
        let state = Arc::new(State { options, host, role, closing: watch::Sender::new(false) });
        Arc::new(Self {
            process: std::process::id(),
            inner: Some(Inner { work: Work::Elsewhere(runner), state }),
        })
    }

    fn inner(&self) -> Result<&Inner, CoreError> {
        if std::process::id() != self.process {
            let reason =
                "this process was forked from the one that opened the outbox: open it again here".to_owned();
            return Err(CoreError::Forked { reason });
        }
        self.inner.as_ref().ok_or_else(|| CoreError::Closed { reason: "the outbox was closed".to_owned() })
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), CoreError> {
        match &self.inner()?.work {
            Work::Threads(runtime) => match &*runtime.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(runtime) => drop(runtime.spawn(work)),
                None => return Err(closed()),
            },
            #[cfg(feature = "lab")]
            Work::Elsewhere(runner) => runner.run(Box::pin(work)),
        }
        Ok(())
    }

    async fn call(&self, call: Call) -> Result<Answer, CoreError> {
        let (told, answer) = oneshot::channel();
        let state = Arc::clone(&self.inner()?.state);
        self.spawn(async move {
            // Where nobody waits any more, it was done all the same.
            let _ = told.send(state.carry_out(call).await);
        })?;
        answered(answer).await?
    }

    async fn done(&self, call: Call) -> Result<(), CoreError> {
        match self.call(call).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn receipt(&self, call: Call) -> Result<Option<Receipt>, CoreError> {
        match self.call(call).await? {
            Answer::Receipt(receipt) => Ok(receipt.map(|receipt| *receipt)),
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // In a forked child the locks, the file and the threads are the parent's: giving them back would take them from it.
        if std::process::id() != self.process {
            std::mem::forget(self.inner.take());
        } else if let Some(Inner { work: Work::Threads(runtime), .. }) = &self.inner
            && let Some(runtime) = runtime.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // The last user may be a thread of the runtime itself, which cannot wait for its own end.
            runtime.shutdown_background();
        }
    }
}

impl State {
    /// Carries out a call here, or hands it to the owner; where the owner is gone, this process becomes it.
    async fn carry_out(&self, call: Call) -> Result<Answer, CoreError> {
        let mut last = String::new();
        for _ in 0..HAND_OVER_TRIES_MAX {
            match &*self.role.read().await {
                Role::Owner(owner) if call.only_waits() => {
                    let mut closing = self.closing.subscribe();
                    return tokio::select! {
                        biased;
                        _ = closing.wait_for(|is_closing| *is_closing) => Err(closed()),
                        answer = owner.carry_out(call) => answer,
                    };
                }
                Role::Owner(owner) => return owner.carry_out(call).await,
                Role::Closed => return Err(closed()),
                Role::Guest => {}
            }
            match link::ask(std::path::Path::new(&self.options.path), &call).await {
                Ok(answer) => return answer,
                Err(error) => last = error.to_string(),
            }
            self.take_over().await?;
            tokio::time::sleep(HAND_OVER_PAUSE).await;
        }
        Err(CoreError::Unavailable {
            reason: format!("another process owns the outbox and cannot be reached: {last}"),
        })
    }

    /// Ends what only waits, lets what writes finish, and gives the file back.
    async fn close(&self) {
        self.closing.send_replace(true);
        let role = std::mem::replace(&mut *self.role.write().await, Role::Closed);
        if let Role::Owner(owner) = role {
            owner.close().await;
        }
    }

    /// Becomes the owner where there is none.
    async fn take_over(&self) -> Result<(), CoreError> {
        let mut role = self.role.write().await;
        if matches!(&*role, Role::Guest)
            && let Opened::Owner(owner) =
                Owner::open(&self.options, &self.host, Arc::new(Uncounted) as Arc<dyn Blocking>).await?
        {
            *role = Role::Owner(owner);
        }
        Ok(())
    }
}

/// Waits for the end of the owner and takes its place, so that nothing waits for the next call.
async fn succeed(state: std::sync::Weak<State>) {
    loop {
        let Some(path) = state.upgrade().map(|state| state.options.path.clone()) else { return };
        link::outlive_owner(std::path::Path::new(&path)).await;
        let Some(state) = state.upgrade() else { return };
        if let Err(error) = state.take_over().await {
            tracing::warn!(%error, "failed to take over the outbox");
        }
        if !matches!(&*state.role.read().await, Role::Guest) {
            return;
        }
        tokio::time::sleep(HAND_OVER_PAUSE * 4).await;
    }
}

fn name(id: String, principal: Option<String>, operation: Option<String>) -> Name {
    let scope = operation.map(|operation| (principal.unwrap_or_else(|| "default".to_owned()), operation));
    Name { id, scope }
}

fn unexpected(answer: &Answer) -> CoreError {
    CoreError::Unavailable { reason: format!("the owner is of another release: it answered {answer:?}") }
}
