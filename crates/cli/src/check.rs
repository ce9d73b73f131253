//! `semel check`: reads the settings, prints what is in force and the retention arithmetic, refuses the unsafe.

mod parts;

use std::io::Write;
use std::path::{Path, PathBuf};

use semel_contract::profile::Profile;
use serde_json::{Value, json};

use crate::config::{Config, Route, Variables, describe, redacted, without_passwords};
use crate::exit::{Exit, Stop};
use crate::output_failed;
use crate::serve::{announce, settings};
use crate::style;
use parts::Parts;

/// Check a configuration and show the retention arithmetic.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The whole file is read: routes and [gate], and where they are there [outbox] and [relay] with its targets. \
What `semel serve gate`, `serve outbox` or `serve relay` would refuse is refused here. A file that the settings name and that \
is not on this machine, such as a certificate, is a warning, and so is mode = \"observe\", in which nothing is protected.\n\nEvery setting of the file's top, [gate] and [defaults] can be overridden by a variable, such as \
SEMEL_STORE, SEMEL_GATE_LISTEN or SEMEL_DEFAULTS_RETRY_WINDOW.\nExits 1 when a setting is unsafe or a part would not start, 3 when the file cannot be read."
)]
pub(crate) struct Args {
    /// The configuration; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
    let beside = Path::new("semel.toml");
    let named = args.config.as_deref().or_else(|| variables.config().map(Path::new));
    let path = named.or_else(|| beside.exists().then_some(beside));
    let mut config = Config::load(path, &variables)?;
    let parts = Parts::of(&mut config, path);
    let mut warnings = config.warnings();
    warnings.extend(parts.warnings.iter().cloned());
    let report = Report { warnings, config, parts };
    let text = if args.json { format!("{}\n", report.json()) } else { report.text() };
    let text = without_passwords(&text);
    let text = if args.json { text } else { style::first_words(&text) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(if report.is_safe() { Exit::Success } else { Exit::Found })
}

struct Report {
    config: Config,
    warnings: Vec<String>,
    parts: Parts,
}

impl Report {
    fn profiles(&self) -> impl Iterator<Item = (String, &Profile)> {
        settings::profiles(&self.config)
    }

    fn is_safe(&self) -> bool {
        self.parts.refused.is_empty() && self.profiles().all(|(_, profile)| profile.unsafeties().is_empty())
    }

    fn text(&self) -> String {
        let config = &self.config;
        let mut text = String::new();
        let origin = config.path.as_ref().map_or_else(
            || "none: no file was named, and there is no semel.toml here".to_owned(),
            |path| path.display().to_string(),
        );
        text.push_str(&line("configuration", &origin));
        // A file that is about other parts only is read for them.
        if !config.is_about_others() {
            text.push_str(&self.gate_text());
        }
        if !config.applied.overriding.is_empty() {
            text.push_str(&line("overridden by", &config.applied.overriding.join(", ")));
        }
        let profiles = self.profiles().filter(|_| !config.is_about_others());
        profiles.for_each(|(name, profile)| text.push_str(&self.profile_text(&name, profile)));
        for (name, about) in
            [("outbox", &self.parts.outbox), ("relay", &self.parts.relay), ("broker", &self.parts.broker)]
        {
            let Some(about) = about else { continue };
            text.push_str(&format!("\n[{name}]\n"));
            for (setting, value) in about {
                text.push_str(&shown(setting, value));
            }
        }
        for warning in &self.warnings {
            text.push_str(&format!("\nwarning: {warning}\n"));
        }
        for (part, why) in &self.parts.refused {
            text.push_str(&format!("\nUNSAFE `semel serve {part}` will not start: {why}\n"));
        }
        text.push_str(if self.is_safe() {
            "\nok: every setting is safe\n"
        } else {
            "\nrefused: change the settings marked UNSAFE\n"
        });
        text
    }

    fn gate_text(&self) -> String {
        let config = &self.config;
        let mut text = String::new();
        for protected in announce::protected(config, false) {
            text.push_str(&line("protects", &protected));
        }
        text.push_str(&line("store", &config.store.to_string()));
        text.push_str(&line("identity", &redacted(&config.identity.to_string())));
        for (name, value) in config.gate.describe() {
            text.push_str(&line(name, &value));
        }
        let upstream = config.gate.upstream.as_ref().map(|upstream| upstream.target.to_string());
        text.push_str(&line("upstream", upstream.as_deref().unwrap_or("none yet: say gate.upstream")));
        text
    }

    fn profile_text(&self, name: &str, profile: &Profile) -> String {
        let mut text = format!("\n[{name}]\n");
        for (setting, value) in describe(profile) {
            text.push_str(&indented(setting, &value));
        }
        let named = |route: &&Route| format!("route.{}", route.name) == name;
        if let Some(route) = self.config.routes.iter().find(named) {
            text.push_str(&indented("match", &route.pattern.to_string()));
            if let Some(identity) = &route.identity {
                text.push_str(&indented("identity", &redacted(&identity.to_string())));
            }
            if !route.former_names.is_empty() {
                text.push_str(&indented("was", &route.former_names.join(", ")));
            }
            if let Some(probe) = &route.probe {
                text.push_str(&indented("probe", probe));
            }
        }
        for bound in profile.arithmetic() {
            text.push_str(&format!("  {} {}\n", if bound.holds { "ok    " } else { "UNSAFE" }, bound.rule));
        }
        for found in profile.unsafeties() {
            text.push_str(&format!("  UNSAFE change {found}\n"));
        }
        text
    }

    fn json(&self) -> Value {
        let config = &self.config;
        let profiles: serde_json::Map<String, Value> = self
            .profiles()
            .map(|(name, profile)| {
                let settings: serde_json::Map<String, Value> = describe(profile)
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), json!(value)))
                    .collect();
                let arithmetic: Vec<Value> = profile
                    .arithmetic()
                    .iter()
                    .map(|bound| json!({"rule": bound.rule, "holds": bound.holds, "setting": bound.setting}))
                    .collect();
                let refused: Vec<Value> = profile
                    .unsafeties()
                    .iter()
                    .map(|found| json!({"setting": found.setting, "reason": found.reason}))
                    .collect();
                (name, json!({"settings": settings, "arithmetic": arithmetic, "unsafe": refused}))
            })
            .collect();
        let refused: Vec<Value> =
            self.parts.refused.iter().map(|(part, why)| json!({"part": part, "message": why})).collect();
        let mut gate: serde_json::Map<String, Value> =
            config.gate.describe().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let upstream = config.gate.upstream.as_ref().map(|upstream| upstream.target.to_string());
        gate.insert("upstream".to_owned(), json!(upstream));
        json!({
            "safe": self.is_safe(),
            "config": config.path,
            "store": config.store.to_string(),
            "identity": redacted(&config.identity.to_string()),
            "gate": gate,
            "overridden": config.applied.overriding,
            "profiles": profiles,
            "warnings": self.warnings,
            "outbox": self.parts.outbox,
            "relay": self.parts.relay,
            "broker": self.parts.broker,
            "refused": refused,
        })
    }
}

/// How wide the names of settings are.
const NAME_CHARS: usize = 23;

fn line(name: &str, value: &str) -> String {
    format!("{name:<NAME_CHARS$}{value}\n")
}

fn indented(name: &str, value: &str) -> String {
    format!("  {}", line(name, value))
}

/// A setting with its value; tables with their rows below.
fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => indented(name, text),
        Value::Object(rows) => rows
            .iter()
            .map(|(row, fields)| {
                let fields = fields.as_object().into_iter().flatten();
                let fields: Vec<String> = fields
                    .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
                    .collect();
                indented(name, &format!("{row}: {}", fields.join(", ")))
            })
            .collect(),
        other => indented(name, &other.to_string()),
    }
}
