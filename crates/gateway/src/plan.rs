//! What a gateway is told, and what is in force of it.

use std::sync::Arc;

use http::header::HeaderName;
use rustls::ServerConfig;
use semel_gate::{GateLayer, GateService};
use semel_http::{Certificates, Cors, Limits, Pool, Upstream};
use tower_layer::Layer;

use crate::access::AccessLog;
use crate::forward::Forward;
use crate::identity::Peers;
use crate::measure::Meters;
#[cfg(feature = "otel")]
use crate::traces::Traces;

/// Everything that a gateway is told, and that can be told anew while it runs.
#[derive(Debug)]
pub struct Plan {
    /// What may run.
    pub gate: GateLayer,
    /// What stands behind it.
    pub upstream: Upstream,
    /// The certificate that clients see; without one there is no TLS.
    pub tls: Option<Certificates>,
    /// What clients may take.
    pub limits: Limits,
    /// Headers that only these peers may set; from others they are removed.
    pub trusted: Vec<(HeaderName, Peers)>,
    /// Which pages on other origins may use it; without this, none but those that the service lets.
    pub cors: Option<Cors>,
    /// Where requests are written down.
    pub log: AccessLog,
    /// Who is told of requests as spans of traces; needs the feature `otel`.
    pub traces: Option<Traces>,
}

/// Without the feature `otel` nobody can be told of spans.
#[cfg(not(feature = "otel"))]
#[derive(Clone, Debug)]
pub enum Traces {}

/// What is in force.
pub(crate) struct Current {
    pub(crate) gate: GateLayer,
    pub(crate) service: GateService<Forward>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) limits: Limits,
    pub(crate) trusted: Vec<(HeaderName, Peers)>,
    pub(crate) cors: Option<Cors>,
    pub(crate) log: AccessLog,
    #[cfg(feature = "otel")]
    pub(crate) traces: Option<Traces>,
    pub(crate) meters: Meters,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

impl Current {
    /// What a plan comes to.
    pub(crate) fn of(plan: Plan) -> Result<Self, String> {
        let tls = plan.tls.as_ref().map(Certificates::load).transpose()?;
        let pool = Pool::new(plan.upstream)?;
        Ok(Self {
            service: plan.gate.layer(Forward::new(Arc::clone(&pool))),
            pool,
            gate: plan.gate,
            limits: plan.limits,
            trusted: plan.trusted,
            cors: plan.cors,
            log: plan.log,
            #[cfg(feature = "otel")]
            traces: plan.traces,
            meters: Meters::default(),
            tls,
        })
    }
}
