//! `[gate]` as the file would write it: every setting in force, for `semel check`.

use semel_contract::identity::Identity;
use semel_contract::time::format_duration as show;
use semel_gateway::{HostSent, Protocol};

use super::{AtRest, Bounds, Gate, Postgres};
use crate::config::Mode;
use crate::config::describe::describe_sweep;
use crate::config::values::{Bytes, redacted};

impl Gate {
    /// Every setting and its value, as the file would write it.
    pub(crate) fn describe(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("listen", self.listen.to_string()),
            ("admin", self.admin.to_string()),
            ("admin_token_file", path_or_none(self.admin_token_file.as_deref())),
            ("admin_read_token_file", path_or_none(self.admin_read_token_file.as_deref())),
            ("admin_trusted", self.admin_trusted.clone().unwrap_or_else(|| "none".to_owned())),
            ("admin_operators", listed(&self.admin_operators)),
            ("admin_hosts", listed(&self.admin_hosts)),
            ("mode", mode_name(self.mode).to_owned()),
            (
                "tls",
                self.tls.as_ref().map_or_else(|| "none".to_owned(), |tls| tls.cert.display().to_string()),
            ),
            ("trusted_peers", self.trusted_peers.to_string()),
            ("cors", self.cors.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
            ("access_log", self.access_log.to_string()),
            (
                "log_format",
                self.log_format.map_or_else(|| "by what it is".to_owned(), |format| format.to_string()),
            ),
            ("cores", self.cores.map_or_else(|| "all".to_owned(), |cores| cores.to_string())),
            ("drain", show(self.drain)),
            ("redis", self.redis.as_deref().map_or_else(|| "none".to_owned(), redacted)),
            ("at_rest", self.at_rest.as_ref().map_or_else(|| "none".to_owned(), AtRest::describe)),
            ("fingerprint_keys", path_or_none(self.fingerprint_keys.as_deref())),
            ("name", self.name.clone().unwrap_or_else(|| "the upstream's address".to_owned())),
            ("was_identity", was_identity(&self.was_identity)),
            ("forget_former", self.forget_former.to_string()),
            ("postgres", self.postgres.describe()),
            ("sweep", self.sweep.map_or_else(|| "as the profile says".to_owned(), describe_sweep)),
        ];
        let limits = &self.limits;
        lines.push((
            "limits",
            format!(
                "header_timeout {}, body_timeout {}, idle_timeout {}, write_timeout {}, connections {}, headers {}, \
                 header_bytes {}, streams {}{}",
                show(limits.header_timeout),
                show(limits.body_timeout),
                show(limits.idle_timeout),
                show(limits.write_timeout),
                limits.connections_max,
                limits.headers_max,
                Bytes(limits.header_bytes_max as u64),
                limits.streams_max,
                self.bounds.describe()
            ),
        ));
        if let Some(upstream) = &self.upstream {
            let ca = upstream.ca.as_ref().map_or_else(String::new, |ca| format!(", ca {}", ca.display()));
            let host = match upstream.host {
                HostSent::Clients => "client",
                HostSent::Own => "upstream",
            };
            lines.push((
                "upstream_settings",
                format!(
                    "{}, timeout {}, connect_timeout {}, stream_idle {}, http2 {}, host {host}, connections {}{ca}",
                    upstream.target,
                    show(upstream.timeout),
                    show(upstream.connect_timeout),
                    show(upstream.stream_idle),
                    upstream.protocol == Protocol::Http2,
                    upstream.connections_max
                ),
            ));
        }
        lines
    }
}

fn was_identity(identities: &[Identity]) -> String {
    match identities {
        [] => "none".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn path_or_none(path: Option<&std::path::Path>) -> String {
    path.map_or_else(|| "none".to_owned(), |path| path.display().to_string())
}

impl Bounds {
    fn describe(self) -> String {
        let shown =
            [("running", self.running), ("waiting", self.waiting), ("waiting_per_key", self.waiting_per_key)];
        let mut text: String =
            shown.iter().filter_map(|(name, given)| given.map(|given| format!(", {name} {given}"))).collect();
        if let Some(bytes) = self.bodies {
            text.push_str(&format!(", bodies {bytes}"));
        }
        if let Some(deadline) = self.body_deadline {
            text.push_str(&format!(", body_deadline {}", show(deadline)));
        }
        text
    }
}

impl Postgres {
    fn describe(&self) -> String {
        let ca = self.ca.as_ref().map_or_else(String::new, |ca| format!(", ca {}", ca.display()));
        format!("connections {}, migrate {}{ca}", self.connections, self.migrate)
    }
}

impl AtRest {
    fn describe(&self) -> String {
        let keys = self.keys.as_ref().map(|keys| format!("encrypted by {}", keys.display()));
        let compressed = self.compress.then(|| "compressed".to_owned());
        [compressed, keys].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The word for a mode.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
