//! The service behind the gate, as tower sees it: whether it is ready, and what a call begins with. What it does with a
//! request is in `handling`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::body::Body;
use futures_util::FutureExt;
use http::{Request, Response};
use semel_gate::NoAnswer;
use tokio::time::{Instant, Sleep};
use tower::Service;

use crate::faults::Fault;
use crate::faulty::FaultyStore;
use crate::handling::{Call, broken};
pub use crate::handling::{OnPurpose, ServiceFailed};
use crate::life::Life;
use crate::planted::Bug;
use crate::world::World;

/// The service as one node reaches it.
pub struct Upstream {
    world: Arc<World>,
    life: Arc<Life>,
    store: Arc<FaultyStore>,
    /// How often it was asked whether it is ready; the gate asks a second time, right before it dispatches.
    asked: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Clone for Upstream {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.world), Arc::clone(&self.life), Arc::clone(&self.store))
    }
}

impl Upstream {
    /// The service, for one life of a node.
    pub fn new(world: Arc<World>, life: Arc<Life>, store: Arc<FaultyStore>) -> Self {
        Self { world, life, store, asked: 0, pause: None }
    }

    /// Draws whether the node stands still between its claim and its dispatch.
    fn draw_pause(&mut self) {
        let time = if self.world.strikes(Fault::ReadyPause) {
            self.world.rng(|rng| rng.millis(100, 9000))
        } else {
            Duration::ZERO
        };
        let thaws = self.life.frozen_until();
        let until = thaws.max(Instant::now() + time);
        if until > Instant::now() {
            self.pause = Some(Box::pin(tokio::time::sleep_until(until)));
        }
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = ServiceFailed;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, ServiceFailed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ServiceFailed>> {
        if self.pause.is_none() {
            self.asked += 1;
            if self.asked < 2 {
                return Poll::Ready(Ok(()));
            }
            if self.world.strikes(Fault::NotReady) {
                return Poll::Ready(Err(ServiceFailed));
            }
            self.draw_pause();
        }
        match self.pause.as_mut().map(|pause| pause.poll_unpin(cx)) {
            Some(Poll::Pending) => Poll::Pending,
            // A dead node does nothing any more.
            _ if self.life.is_dead() => Poll::Pending,
            Some(Poll::Ready(())) | None => {
                self.pause = None;
                Poll::Ready(Ok(()))
            }
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (world, life, store) = (Arc::clone(&self.world), Arc::clone(&self.life), Arc::clone(&self.store));
        let call = Call::read(world, life, store, request);
        if call.world.strikes(Fault::NotSent) {
            return Box::pin(async { Ok(broken(NoAnswer::NotSent("simulated".to_owned()))) });
        }
        if call.world.plan.options.planted == Some(Bug::LateDispatch) && call.world.rng(|rng| rng.chance(100))
        {
            return Box::pin(call.late());
        }
        call.world.dispatched(call.slot, call.fence(), call.send);
        call.check_age();
        if call.world.strikes(Fault::FreezeInHandler) {
            let time = call.world.rng(|rng| rng.millis(1000, 25_000));
            call.world.note(Some(call.slot), format!("{} stands still for {time:?}", call.life.name));
            call.life.freeze(time);
        }
        if call.world.strikes(Fault::PanicInCall) {
            call.world.attempt_ended(call.fence());
            std::panic::resume_unwind(Box::new(OnPurpose));
        }
        Box::pin(call.run())
    }
}
