//! An upstream by templates, as `semel.toml` declares it.

use std::sync::Arc;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_contract::profile::settings::values::Setting;
use semel_http::MaySend;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asked, Batch, Current, Place, Read, Upstream};
use crate::credentials::Credential;
use crate::message::Answer;
use crate::relay::template::{Template, Values};
use crate::transport::{Outgoing, Sent, Transport};
use crate::url::Target as Address;

/// Where a version is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionAt {
    /// In a header line, such as `ETag`.
    Header(String),
    /// In the body.
    Body(Pointer),
}

impl Setting for VersionAt {
    /// `header:NAME` or a JSON pointer.
    fn read(text: &str) -> Result<Self, String> {
        match text.strip_prefix("header:") {
            Some(name) => Ok(VersionAt::Header(name.to_owned())),
            None => <Pointer as Setting>::read(text).map(VersionAt::Body),
        }
    }
}

/// How the current value is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The address.
    pub url: Template,
    /// Header lines.
    pub headers: Vec<(String, Template)>,
    /// Where the value is.
    pub value: Pointer,
    /// Where the version is.
    pub version: Option<VersionAt>,
    /// Where the marker or the list of markers is.
    pub marker: Option<Pointer>,
}

/// An upstream by templates.
pub struct HttpUpstream {
    /// Scheme, host and port.
    pub origin: String,
    /// The method of a write.
    pub method: String,
    /// Its address.
    pub url: Template,
    /// Its header lines.
    pub headers: Vec<(String, Template)>,
    /// Its body.
    pub body: Option<Template>,
    /// How the current value is read.
    pub read: Option<Reading>,
    /// How long one call may take.
    pub timeout: Duration,
    /// How it is sent.
    pub transport: Arc<dyn Transport>,
}

impl std::fmt::Debug for HttpUpstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpUpstream").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// A request as it is kept and sent, but for credentials.
#[derive(Debug, Serialize, Deserialize)]
struct Frozen {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl HttpUpstream {
    /// Whether a lane of one group is another place than the lane of the same name in another: both what is written and what
    /// is read say the group. Otherwise two lanes could be one value upstream, and each would undo what the other wrote.
    pub fn tells_groups_apart(&self) -> bool {
        let said = |url: &Template, headers: &[(String, Template)], body: Option<&Template>| {
            let lines = headers.iter().map(|(_, value)| value);
            std::iter::once(url).chain(lines).chain(body).any(|template| template.uses("group"))
        };
        said(&self.url, &self.headers, self.body.as_ref())
            && self.read.as_ref().is_none_or(|read| said(&read.url, &read.headers, None))
    }

    /// Whether a write says how much is added, and never what the value becomes.
    pub fn writes_only_deltas(&self) -> bool {
        let lines = self.headers.iter().map(|(_, value)| value);
        let all: Vec<&Template> = std::iter::once(&self.url).chain(lines).chain(&self.body).collect();
        let uses = |name: &str| all.iter().any(|template| template.uses(name));
        uses("delta") && !uses("after") && !uses("value")
    }

    async fn send(&self, frozen: Frozen, credential: Option<&Credential>, may_send: MaySend) -> Sent {
        let target = match Address::absolute(&frozen.url) {
            // A value in a template never leads to another host.
            Ok(target) if target.origin == self.origin => target,
            Ok(target) => {
                return Sent::NotSent(format!("{} is not the target's own {}", target.origin, self.origin));
            }
            Err(error) => return Sent::NotSent(error.to_string()),
        };
        let mut headers = frozen.headers;
        if let Some(credential) = credential {
            headers.extend(credential.headers.iter().cloned());
        }
        let outgoing = Outgoing {
            method: frozen.method,
            target,
            headers,
            body: frozen.body.into_bytes(),
            timeout: self.timeout,
            may_send,
        };
        self.transport.send(outgoing).await
    }

    /// The request by which this place is read, where the target can be read.
    fn reading(&self, place: &Place<'_>) -> Option<Result<Frozen, String>> {
        let reading = self.read.as_ref()?;
        let values = Values::from([
            ("lane", place.lane.to_owned()),
            ("group", place.group.to_owned()),
            ("principal", place.principal.to_owned()),
        ]);
        let filled = || -> Result<Frozen, String> {
            let fill = |template: &Template| template.fill(&values).map_err(|error| error.to_string());
            let headers = reading.headers.iter().map(|(name, value)| Ok((name.clone(), fill(value)?)));
            let headers = headers.collect::<Result<_, String>>()?;
            Ok(Frozen { method: "GET".to_owned(), url: fill(&reading.url)?, headers, body: String::new() })
        };
        Some(filled())
    }

    async fn current(&self, place: &Place<'_>, credential: Option<&Credential>) -> Read {
        let (Some(reading), Some(frozen)) = (&self.read, self.reading(place)) else {
            return Read::Failed("the target cannot be read".to_owned());
        };
        let frozen = match frozen {
            Ok(frozen) => frozen,
            Err(why) => return Read::Failed(why),
        };
        match self.send(frozen, credential, MaySend::always()).await {
            Sent::Answered(answer) if (200..300).contains(&answer.status) => {
                found(reading, &answer).map_or(Read::Answered(answer), Read::Current)
            }
            Sent::Answered(answer) => Read::Answered(answer),
            Sent::NotSent(why) | Sent::Broken(why) | Sent::TimedOut(why) => Read::Failed(why),
        }
    }
}

fn found(reading: &Reading, answer: &Answer) -> Option<Current> {
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    let at = |pointer: &Pointer| body.pointer(&pointer.to_string());
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    // Some services write numbers as text.
    let value = at(&reading.value).and_then(|value| value.as_i64().or_else(|| value.as_str()?.parse().ok()));
    let version = match &reading.version {
        Some(VersionAt::Header(name)) => answer.header(name).map(str::to_owned),
        Some(VersionAt::Body(pointer)) => at(pointer).and_then(text),
        None => None,
    };
    let markers = match reading.marker.as_ref().and_then(at) {
        Some(Value::Array(all)) => all.iter().filter_map(text).collect(),
        Some(one) => text(one).into_iter().collect(),
        None => Vec::new(),
    };
    value.map(|value| Current { value: Some(value), version, markers })
}

impl Upstream for HttpUpstream {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn reads(&self) -> bool {
        self.read.is_some()
    }

    fn admits(&self, place: &Place<'_>, label: Option<&str>) -> Result<(), String> {
        let number = || Some(1);
        let batch = Batch {
            lane: place.lane.to_owned(),
            group: place.group.to_owned(),
            label: label.map(str::to_owned),
            principal: place.principal.to_owned(),
            delta: 1,
            before: number(),
            after: number(),
            key: "1".to_owned(),
            version: Some("1".to_owned()),
        };
        self.freeze(&batch)?;
        self.reading(place).map_or(Ok(()), |reading| reading.map(drop))
    }

    fn read<'a>(&'a self, place: &'a Place<'a>, credential: Option<&'a Credential>) -> Asked<'a, Read> {
        Box::pin(self.current(place, credential))
    }

    fn freeze(&self, batch: &Batch) -> Result<String, String> {
        let mut values = Values::from([
            ("lane", batch.lane.clone()),
            ("group", batch.group.clone()),
            ("label", batch.label.clone().unwrap_or_default()),
            ("principal", batch.principal.clone()),
            ("delta", batch.delta.to_string()),
            ("key", batch.key.clone()),
            ("marker", batch.key.clone()),
        ]);
        let known =
            [("before", batch.before), ("after", batch.after), ("value", batch.after.or(Some(batch.delta)))];
        values.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))));
        values.extend(batch.version.clone().map(|version| ("version", version)));
        let fill = |template: &Template| template.fill(&values).map_err(|error| error.to_string());
        let headers = self.headers.iter().map(|(name, value)| Ok((name.clone(), fill(value)?)));
        let frozen = Frozen {
            method: self.method.clone(),
            url: fill(&self.url)?,
            headers: headers.collect::<Result<_, String>>()?,
            body: self.body.as_ref().map(fill).transpose()?.unwrap_or_default(),
        };
        if self.body.as_ref().is_some_and(|body| !body.makes_json(&frozen.body)) {
            return Err("the body would not be JSON: texts need quotes around their braces".to_owned());
        }
        serde_json::to_string(&frozen).map_err(|error| error.to_string())
    }

    fn write<'a>(
        &'a self,
        frozen: &'a str,
        credential: Option<&'a Credential>,
        may_send: MaySend,
    ) -> Asked<'a, Sent> {
        Box::pin(async move {
            match serde_json::from_str(frozen) {
                Ok(frozen) => self.send(frozen, credential, may_send).await,
                Err(error) => Sent::NotSent(format!("the frozen request cannot be read: {error}")),
            }
        })
    }
}
