//! `semel check`: reads the settings, prints what is in force and the retention arithmetic, refuses the unsafe.

use std::io::Write;
use std::path::{Path, PathBuf};

use semel_contract::key::Presence;
use semel_contract::profile::{InFlight, Profile};
use semel_contract::time::format_duration;
use serde_json::{Value, json};

use crate::config::{Config, Mode, Variables, known_variables};
use crate::exit::{Exit, Stop};
use crate::output_failed;

/// Check a configuration and show the retention arithmetic.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every setting of the file's top, [gate] and [defaults] can be overridden by a variable, such as \
SEMEL_STORE, SEMEL_GATE_LISTEN or SEMEL_DEFAULTS_RETRY_WINDOW.\nExits 1 when a setting is unsafe, 3 when the file cannot be read."
)]
pub(crate) struct Args {
    /// The configuration; without one, ./semel.toml if it is there.
    #[arg(long, value_name = "FILE", env = "SEMEL_CONFIG")]
    config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let beside = Path::new("semel.toml");
    let path = args.config.as_deref().or_else(|| beside.exists().then_some(beside));
    let variables: Variables = std::env::vars().filter(|(name, _)| name.starts_with("SEMEL_")).collect();
    let report = Report::of(Config::load(path, &variables)?, &variables);
    let text = if args.json { format!("{}\n", report.json()) } else { report.text() };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(if report.is_safe() { Exit::Success } else { Exit::Found })
}

struct Report {
    config: Config,
    warnings: Vec<String>,
}

impl Report {
    fn of(config: Config, variables: &Variables) -> Self {
        let mut warnings = config.warnings();
        let own = |name: &str| {
            ["SEMEL_CONFIG", "SEMEL_MUTATE_CELL"].contains(&name) || name.starts_with("SEMEL_TEST_")
        };
        for name in variables.keys().filter(|name| !own(name)) {
            if !known_variables().any(|(known, _)| known == name) {
                warnings.push(format!("the variable {name} overrides nothing: there is no such setting"));
            }
        }
        Self { config, warnings }
    }

    /// Each profile in force with its name in the file.
    fn profiles(&self) -> impl Iterator<Item = (String, &Profile)> {
        let routes = self.config.routes.iter().map(|route| (format!("route.{}", route.name), &route.profile));
        std::iter::once(("defaults".to_owned(), &self.config.defaults)).chain(routes)
    }

    fn is_safe(&self) -> bool {
        self.profiles().all(|(_, profile)| profile.unsafeties().is_empty())
    }

    fn text(&self) -> String {
        let config = &self.config;
        let mut text = String::new();
        let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<14}{value}\n"));
        let origin = config.path.as_ref().map_or_else(
            || {
                "none: every method but GET, HEAD, OPTIONS and TRACE is keyed when a key is present"
                    .to_owned()
            },
            |path| path.display().to_string(),
        );
        line("configuration", &origin);
        line("store", &config.store.to_string());
        line("identity", &config.identity.to_string());
        line("listen", &config.listen);
        line("admin", &config.admin);
        line("upstream", config.upstream.as_deref().unwrap_or("none yet: --upstream or gate.upstream"));
        line("mode", mode_name(config.mode));
        if !config.overridden.is_empty() {
            line("overridden by", &config.overridden.join(", "));
        }
        for (name, profile) in self.profiles() {
            text.push_str(&format!("\n[{name}]\n"));
            for (setting, value) in settings(profile) {
                text.push_str(&format!("  {setting:<14}{value}\n"));
            }
            if let Some(route) = config.routes.iter().find(|route| format!("route.{}", route.name) == name) {
                text.push_str(&format!("  {:<14}{}\n", "match", route.pattern));
                if !route.was.is_empty() {
                    text.push_str(&format!("  {:<14}{}\n", "was", route.was.join(", ")));
                }
                if let Some(probe) = &route.probe {
                    text.push_str(&format!("  {:<14}{probe}\n", "probe"));
                }
            }
            for bound in profile.arithmetic() {
                text.push_str(&format!(
                    "  {} {}\n",
                    if bound.holds { "ok    " } else { "UNSAFE" },
                    bound.rule
                ));
            }
            for found in profile.unsafeties() {
                text.push_str(&format!("  change {found}\n"));
            }
        }
        for warning in &self.warnings {
            text.push_str(&format!("\nwarning: {warning}\n"));
        }
        text.push_str(if self.is_safe() {
            "\nok: every setting is safe\n"
        } else {
            "\nrefused: change the settings marked UNSAFE\n"
        });
        text
    }

    fn json(&self) -> Value {
        let config = &self.config;
        let profiles: serde_json::Map<String, Value> = self
            .profiles()
            .map(|(name, profile)| {
                let settings: serde_json::Map<String, Value> = settings(profile)
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
        json!({
            "safe": self.is_safe(),
            "config": config.path,
            "store": config.store.to_string(),
            "identity": config.identity.to_string(),
            "gate": {"listen": config.listen, "admin": config.admin, "upstream": config.upstream, "mode": mode_name(config.mode)},
            "overridden": config.overridden,
            "profiles": profiles,
            "warnings": self.warnings,
        })
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    }
}

/// The settings that people ask about, in words that the file understands.
fn settings(profile: &Profile) -> Vec<(&'static str, String)> {
    let sources: Vec<String> = profile.key.sources.iter().map(ToString::to_string).collect();
    let in_flight = match profile.in_flight {
        InFlight::Wait { deadline } => format!("wait {}", format_duration(deadline)),
        InFlight::Reject { retry_after } => format!("reject {}", format_duration(retry_after)),
        InFlight::Accepted => "accepted".to_owned(),
    };
    let presence = match profile.key.presence {
        Presence::Required => "required",
        Presence::Optional => "optional",
        Presence::Mint => "mint",
    };
    vec![
        ("profile", profile.name.to_owned()),
        ("guarantee", profile.guarantee.name().to_owned()),
        ("key", format!("{presence}, {} as {}", sources.join(" or "), profile.key.format)),
        ("in_flight", in_flight),
        ("on_unknown", profile.on_unknown.name().to_owned()),
        ("retry_window", format_duration(profile.lifetime.retry_window)),
        ("kept for", format_duration(profile.lifetime.record())),
    ]
}
