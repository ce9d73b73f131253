//! The table of profiles in `spec/contract.md` says what the presets do, cell by cell.

use semel_contract::fingerprint::Input;
use semel_contract::key::{Presence, Syntax};
use semel_contract::outcome::Keep;
use semel_contract::profile::presets::{PRESETS, ietf};
use semel_contract::profile::{
    Anchor, Charge, FailedKey, Generator, GiveUp, InFlight, Lane, Mismatch, OnError, OnUnknown, Profile,
    Reducer, Replay, Reveal, SweepWhen,
};
use semel_contract::record::Guarantee;
use semel_contract::schedule::Jitter;
use semel_contract::time::format_duration as show;

type Row = (&'static str, fn(&Profile) -> String);

/// Every row of the table and how a preset fills it.
const ROWS: [Row; 32] = [
    ("key source", |p| list(p.key.sources.iter().map(ToString::to_string))),
    ("syntax", |p| {
        word(match p.key.syntax {
            Syntax::Bare => "bare",
            Syntax::SfString => "sf-string",
            Syntax::Both => "both",
        })
    }),
    ("format", |p| p.key.format.to_string()),
    ("presence", |p| {
        word(match p.key.presence {
            Presence::Required => "required",
            Presence::Optional => "optional",
            Presence::Mint => "mint",
        })
    }),
    ("also required", |p| {
        list(p.key.require_headers.iter().map(|header| format!("{} {}", header.name, header.format)))
    }),
    ("scope", |p| {
        let parts =
            [("tenant", p.scope.tenant), ("principal", p.scope.principal), ("endpoint", p.scope.endpoint)];
        list(parts.into_iter().filter(|(_, there)| *there).map(|(name, _)| name.to_owned()))
    }),
    ("fingerprint", fingerprint),
    ("mismatch", |p| match p.mismatch {
        Mismatch::Refuse { status, reveal: Reveal::None } => status.to_string(),
        Mismatch::Refuse { status, reveal: Reveal::Prefix8 } => format!("{status} with 8 bytes"),
        Mismatch::Refuse { status, reveal: Reveal::PayloadHashes } => format!("{status} with payload hashes"),
        Mismatch::Ignore => word("ignore"),
    }),
    ("in flight", |p| match p.in_flight {
        InFlight::Wait { deadline } => format!("wait {}", show(deadline)),
        InFlight::Reject { retry_after } => format!("reject {}", show(retry_after)),
        InFlight::Accepted => word("accepted"),
    }),
    ("error form", |p| word(p.wire.form.name())),
    ("retry window", |p| show(p.lifetime.retry_window)),
    ("skew", |p| show(p.lifetime.skew)),
    ("margin", |p| show(p.lifetime.margin)),
    ("record lives", |p| show(p.lifetime.record())),
    ("counted from", |p| {
        word(match p.lifetime.anchor {
            Anchor::Created => "created",
            Anchor::Settled => "settled",
        })
    }),
    ("released rows kept", |p| p.lifetime.released.map_or_else(|| word("no"), show)),
    ("replay", |p| match p.replay {
        Replay::Verbatim => word("verbatim"),
        Replay::Duplicate { status } => format!("duplicate {status}"),
    }),
    ("released answers", released),
    ("other 5xx: on_error", |p| {
        word(match p.on_error {
            OnError::Replay => "replay",
            OnError::Release => "release",
        })
    }),
    ("methods", |p| p.methods.join(", ")),
    ("staleness guard", |p| {
        p.guard.as_ref().map_or_else(
            || word("–"),
            |guard| {
                format!(
                    "{} cap {} grace {}",
                    guard.generated_at,
                    show(guard.bounds.cap),
                    show(guard.bounds.grace)
                )
            },
        )
    }),
    ("new keys at most", |p| {
        p.limits.admission.map_or_else(
            || word("–"),
            |rate| {
                let charged = match p.limits.admission_charge {
                    Charge::NewKey => ", each charged once",
                    Charge::IdWindow => "",
                };
                format!("{} in {}{charged}", rate.count, show(rate.window))
            },
        )
    }),
    ("sender waits", |p| {
        let jitter = match p.schedule.jitter {
            Jitter::None => String::new(),
            Jitter::Full => ", full jitter".to_owned(),
            Jitter::Ratio(ratio) => format!(", ±{} %", ratio * 100.0),
        };
        format!("{} × {} up to {}{jitter}", show(p.schedule.base), p.schedule.factor, show(p.schedule.cap))
    }),
    ("burst, then every", |p| {
        p.schedule
            .burst_attempts
            .map_or_else(|| word("–"), |attempts| format!("{attempts}, {}", show(p.schedule.period)))
    }),
    ("max age", |p| p.schedule.max_age.map_or_else(|| word("–"), show)),
    ("lanes", |p| {
        word(match p.lane {
            Lane::Fifo => "fifo",
            Lane::Independent => "independent",
            Lane::Coalesce(Reducer::Sum) => "coalesce sum",
            Lane::Coalesce(Reducer::Last) => "coalesce last",
            Lane::Coalesce(Reducer::Max) => "coalesce max",
        })
    }),
    ("given up", |p| {
        word(match p.give_up {
            GiveUp::Drop => "drop",
            GiveUp::Dead => "dead",
        })
    }),
    ("minted keys", |p| {
        word(match p.generator {
            Generator::Uuid4 => "uuid4",
            Generator::Uuid4Millis => "uuid4-ms",
            Generator::Ulid => "ulid",
        })
    }),
    ("swept", |p| {
        let log = if p.sweep.log { ", logged" } else { "" };
        match p.sweep.when {
            SweepWhen::Every(period) => format!("every {}{log}", show(period)),
            SweepWhen::DailyAt(time) => format!("daily at {}{log}", show(time)),
        }
    }),
    ("kept answers", |p| {
        let compressed = if p.stored.compress { ", compressed" } else { "" };
        assert_eq!(p.stored.max_body_bytes, p.stored.max_response_bytes);
        format!("up to {} MiB{compressed}", p.stored.max_response_bytes >> 20)
    }),
    // What all presets share is said below the table.
    ("", |p| {
        assert_eq!(
            (p.on_unknown, p.failed_key, p.guarantee),
            (OnUnknown::Hold, FailedKey::Reclaim, Guarantee::Fenced)
        );
        assert_eq!((p.limits.request_refuses_known, p.lifetime.record), (false, None));
        String::new()
    }),
    ("setting", |p| word(&p.name)),
];

fn word(text: &str) -> String {
    text.to_owned()
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { word("–") } else { items.join(", ") }
}

fn fingerprint(profile: &Profile) -> String {
    let recipe = profile.fingerprint.as_ref().expect("every preset looks at the request");
    let usual = ietf().fingerprint.expect("the default looks at the request").inputs;
    assert!(recipe.include.is_empty() && usual.iter().all(|input| recipe.inputs.contains(input)));
    if profile.name == "ietf" {
        return list(recipe.inputs.iter().map(|input| word(input.name())));
    }
    let mut text = word("the same");
    text.extend(recipe.exclude.iter().map(|pointer| format!(" without {pointer}")));
    if recipe.inputs.contains(&Input::Principal) {
        text.push_str(" and principal");
    }
    text
}

/// The statuses that are released, read off the rules as a client would meet them.
fn released(profile: &Profile) -> String {
    let keep = |status: u16| {
        profile.record.iter().find(|rule| (rule.from..=rule.to).contains(&status)).map(|rule| rule.keep)
    };
    let is_released = |status: &u16| keep(*status) == Some(Keep::Release);
    assert!((200..400).all(|status| keep(status) == Some(Keep::Settle)));
    assert!((500..600).filter(|status| *status != 503).all(|status| keep(status).is_none()));
    if (400..500).all(|status| is_released(&status)) && is_released(&503) {
        return word("4xx, 503");
    }
    list((400..600).filter(is_released).map(|status| status.to_string()))
}

#[test]
fn the_table_of_profiles_is_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/contract.md");
    let page = std::fs::read_to_string(path).expect("the contract is there");
    let from = page.find("| setting |").expect("the table of profiles is there");
    let rows: Vec<Vec<String>> = page[from..]
        .lines()
        .take_while(|line| line.starts_with('|'))
        .filter(|line| !line.starts_with("| ---"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect())
        .collect();
    assert_eq!(rows.len(), ROWS.len() - 1, "every row of the table is checked, and nothing else");
    for (name, fill) in ROWS {
        let found: Vec<String> = PRESETS.iter().map(|(_, make)| fill(&make())).collect();
        if let Some(row) = rows.iter().find(|row| row[0] == name) {
            assert_eq!(row[1..], found, "{name}");
        } else {
            assert_eq!(name, "", "the table has no row {name}");
        }
    }
}
