//! `semel check`: the settings in force, the arithmetic, and what is refused.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The file of the documents' example.
const SHOP: &str = r#"
store    = "postgres://semel:secret@db/shop"
identity = "jwt:/etc/semel/jwks.json"

[gate]
listen   = "127.0.0.1:7400"
admin    = "127.0.0.1:7401"
upstream = "http://127.0.0.1:3000"
mode     = "enforce"

[defaults]
profile      = "ietf"
key          = "optional"
retry_window = "24h"
in_flight    = "wait 25s"
on_unknown   = "hold"
on_error     = "replay"

[route.create-order]
match      = "POST /orders"
guarantee  = "atomic"

[route.refund]
match      = "POST /orders/{id}/refund"
on_unknown = { probe = "http://127.0.0.1:3000/refunds/{key}" }
"#;

fn check_with(config: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("semel.toml"), config).unwrap();
    run(folder.path(), args, variables)
}

fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("check").args(args).current_dir(folder);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("semel runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(config: &str, variables: &[(&str, &str)]) -> (Option<i32>, Value) {
    let output = check_with(config, &["--json"], variables);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or(Value::String(stderr(&output))))
}

#[test]
fn the_example_of_the_documents_is_accepted() {
    let (code, report) = report(SHOP, &[]);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["safe"], true);
    assert_eq!(report["identity"], "jwt:/etc/semel/jwks.json");
    assert_eq!(report["profiles"]["route.create-order"]["settings"]["guarantee"], "atomic");
    assert_eq!(report["profiles"]["route.refund"]["settings"]["on_unknown"], "probe");
    assert!(!report.to_string().contains("secret"), "passwords are never shown");
    let text = stdout(&check_with(SHOP, &[], &[]));
    assert!(text.contains("retry_window 1d + 2 × skew 5m + margin 1h"), "{text}");
}

#[test]
fn without_a_file_the_defaults_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(
        text.contains("sqlite:semel.db")
            && text.contains("127.0.0.1:7400")
            && text.contains("warning: identity authorization")
    );
}

#[test]
fn unknown_fields_are_errors_with_their_line() {
    for (config, line, word) in [
        ("[defaults]\nretry_windw = \"1h\"\n", "line 2", "retry_windw"),
        ("stroe = \"sqlite:a\"\n", "line 1", "stroe"),
        ("\n\n[gate]\nlisten = \"here\"\n", "line 4", "here"),
        ("[route.a]\nmatch = \"POST /a\"\nretry_window = \"1 day\"\n", "line 3", "1h30m"),
    ] {
        let output = check_with(config, &[], &[]);
        assert_eq!(output.status.code(), Some(3), "{config}");
        let text = stderr(&output);
        assert!(text.contains(line) && text.contains(word), "{text}");
    }
}

#[test]
fn unsafe_settings_are_refused_with_the_number_to_change() {
    for (config, setting) in [
        ("[route.a]\nmatch = \"POST /a\"\nrecord_lifetime = \"1h\"\n", "record_lifetime"),
        ("[route.a]\nmatch = \"POST /a\"\nmax_age = \"2d\"\n", "max_age"),
        ("[route.a]\nmatch = \"POST /a\"\nprofile = \"mesh\"\nretry_window = \"5d\"\n", "retry_window"),
        (
            "[route.a]\nmatch = \"POST /a\"\nprofile = \"walker\"\nrecord_lifetime = \"7d\"\n",
            "record_lifetime",
        ),
        ("[route.a]\nmatch = \"POST /a\"\nscope = [\"endpoint\"]\n", "scope"),
        ("[route.a]\nmatch = \"POST /a\"\nfingerprint = \"none\"\n", "fingerprint"),
        ("[route.a]\nmatch = \"POST /a\"\nin_flight = \"wait 11m\"\n", "in_flight"),
    ] {
        let (code, report) = report(config, &[]);
        assert_eq!(code, Some(1), "{config} {report}");
        let settings: Vec<&Value> = report["profiles"]["route.a"]["unsafe"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| &found["setting"])
            .collect();
        assert!(settings.contains(&&json!(setting)), "{settings:?}");
    }
}

#[test]
fn variables_override_the_file() {
    let (code, found) = report(
        SHOP,
        &[
            ("SEMEL_STORE", "postgres://other/shop"),
            ("SEMEL_DEFAULTS_RETRY_WINDOW", "7d"),
            ("SEMEL_GATE_MODE", "observe"),
        ],
    );
    assert_eq!(code, Some(0));
    assert_eq!(
        (&found["store"], &found["gate"]["mode"]),
        (&json!("postgres://other/shop"), &json!("observe"))
    );
    assert_eq!(found["profiles"]["route.refund"]["settings"]["retry_window"], "7d");
    assert_eq!(found["profiles"]["route.refund"]["settings"]["record_lifetime"], "8d10m");
    let (code, bad) = report(SHOP, &[("SEMEL_GATE_LISTEN", "nowhere")]);
    assert_eq!(code, Some(3));
    assert!(bad.as_str().unwrap().contains("SEMEL_GATE_LISTEN"));
    let (_, warned) = report(SHOP, &[("SEMEL_STOER", "x")]);
    assert!(warned["warnings"].to_string().contains("SEMEL_STOER"));
}

#[test]
fn routes_that_cannot_be_told_apart_are_refused() {
    let clash = "[route.a]\nmatch = \"POST /a/{x}\"\n[route.b]\nmatch = \"POST|PUT /a/{y}\"\n";
    let (code, error) = report(clash, &[]);
    assert_eq!(code, Some(3));
    assert!(error.as_str().unwrap().contains("routes a and b"));
    let (code, error) = report("[route.a]\nprofile = \"ietf\"\n", &[]);
    assert_eq!(code, Some(3));
    assert!(error.as_str().unwrap().contains("`match` is missing"));
}

#[test]
fn every_knob_of_a_route_is_read() {
    let knobs = [
        ("guarantee", r#""atomic""#, "atomic"),
        ("key", r#""mint""#, "mint"),
        ("key_sources", r#"["header:X-Key", "json:/key"]"#, "header:X-Key, json:/key"),
        ("key_syntax", r#""sf-string""#, "sf-string"),
        ("key_format", r#""regex:[a-z]+""#, "regex:[a-z]+"),
        ("require_headers", r#"[{ name = "X-Device", format = "uuid" }]"#, "X-Device (uuid)"),
        ("scope", r#"["principal"]"#, "principal"),
        (
            "fingerprint",
            r#"{ inputs = ["method", "body"], exclude = ["/sentAt"], include = ["/a"] }"#,
            "method, body; include /a; exclude /sentAt",
        ),
        ("mismatch", r#"{ status = 409, reveal = "payload-hashes" }"#, "status 409, reveal payload-hashes"),
        ("in_flight", r#""reject 2s""#, "reject 2s"),
        ("on_unknown", r#""forward""#, "forward"),
        ("on_error", r#""release""#, "release"),
        ("errors", r#""envelope""#, "envelope"),
        ("retry_window", r#""12h""#, "12h"),
        ("skew", r#""1m""#, "1m"),
        ("margin", r#""90m""#, "1h30m"),
        ("record_lifetime", r#""30d""#, "30d"),
        ("released_lifetime", r#""2d""#, "2d"),
        ("lifetime_from", r#""created""#, "created"),
        ("sweep_grace", r#""1h""#, "1h"),
        ("max_age", r#""3h""#, "3h"),
        ("request_limit", r#"{ rate = "100/1s", refuses = "all" }"#, "100/1s, refuses all"),
        ("request_limit", r#""50/1m""#, "50/1m"),
        ("request_limit", r#""all""#, "none, refuses all"),
        ("admission_limit", r#""1000/1h""#, "1000/1h"),
        ("max_body", r#""64KiB""#, "64KiB"),
        ("max_response", r#""2MiB""#, "2MiB"),
        (
            "guard",
            r#"{ generated_at = "/at", submitted_at = "/sent", cap = "6h", grace = "1h", submitted = "correct", submitted_gap = "2h" }"#,
            "generated_at /at, submitted_at /sent, cap 6h, grace 1h, submitted correct, submitted_gap 2h",
        ),
        ("age", r#""uuid7""#, "uuid7"),
    ];
    for (name, value, shown) in knobs {
        for (config, variables) in [
            (format!("[route.a]\nmatch = \"POST /a\"\n{name} = {value}\n"), vec![]),
            (format!("[defaults]\n{name} = {value}\n[route.a]\nmatch = \"POST /a\"\n"), vec![]),
            (
                "[route.a]\nmatch = \"POST /a\"\n".to_owned(),
                vec![(format!("SEMEL_DEFAULTS_{}", name.to_uppercase()), value)],
            ),
        ] {
            let variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            // What is atomic behind a gateway needs the service's own database.
            let config = format!("store = \"postgres://db/shop\"\n{config}");
            let (code, report) = report(&config, &variables);
            assert_eq!(code, Some(0), "{config} {variables:?} {report}");
            assert_eq!(report["profiles"]["route.a"]["settings"][name], shown, "{config} {variables:?}");
        }
    }
    let (_, sealed) =
        report("[route.a]\nmatch = \"POST /a\"\nprofile = \"feed\"\nfailed_key = \"sealed\"\n", &[]);
    assert_eq!(sealed["profiles"]["route.a"]["settings"]["failed_key"], "sealed");
    let rerun = "[route.a]\nmatch = \"POST /a\"\non_unknown = \"rerun\"\nmismatch = \"ignore\"\nfingerprint = \"none\"\n";
    let (code, report) = report(rerun, &[]);
    assert_eq!((code, report["warnings"].to_string().contains("at least once")), (Some(0), true));
    assert_eq!(report["profiles"]["route.a"]["settings"]["fingerprint"], "none");
}

#[test]
fn a_credential_that_would_be_kept_in_the_clear_is_warned_of() {
    let route = "[route.register]\nmatch = \"POST /agents\"\n";
    let own = "identity = \"shared:registration\"\n";
    let gate = "identity = \"jwt:/keys\"\n";
    let warns = |config: &str| {
        let (code, report) = report(config, &[]);
        assert_eq!(code, Some(0), "{report}");
        report["warnings"].to_string().contains("route.register: what is answered")
    };
    assert!(warns(&format!("{gate}{route}{own}")) && warns(&format!("{own}{route}")));
    assert!(!warns(&format!("{gate}{route}")), "who has an identity gets an answer that is nobody else's");
    let compressed = format!("{gate}{route}{own}[gate.at_rest]\ncompress = true\n");
    assert!(warns(&compressed), "what is compressed is not secret");
    let encrypted = format!("{gate}{route}{own}[gate.at_rest]\nkeys = \"/keys\"\n");
    assert!(!warns(&encrypted));
}

#[test]
fn defaults_belong_to_their_profile_and_the_route_has_the_last_word() {
    let config = r#"
        [defaults]
        key = "optional"
        retry_window = "48h"
        max_age = "10h"
        margin = "2h"
        [route.own]
        match = "POST /own"
        retry_window = "7d"
        [route.walker]
        match = "/walker"
        profile = "walker"
    "#;
    let (code, report) = report(config, &[]);
    assert_eq!(code, Some(0), "{report}");
    let setting = |route: &str, name: &str| report["profiles"][route]["settings"][name].clone();
    assert_eq!(
        (setting("route.own", "max_age"), setting("route.own", "margin")),
        (json!("10h"), json!("2h"))
    );
    assert_eq!(
        (setting("route.own", "key"), setting("route.own", "retry_window")),
        (json!("optional"), json!("7d"))
    );
    assert_eq!(
        (setting("route.walker", "key"), setting("route.walker", "record_lifetime")),
        (json!("required"), json!("8d"))
    );
}

#[test]
fn an_environment_that_is_not_text_is_no_reason_to_panic() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let bad = std::ffi::OsStr::from_bytes(b"\xff");
    for (name, code) in [("FOO", 0), ("SEMEL_STORE", 3)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        let output = command
            .arg("check")
            .current_dir(folder.path())
            .env(name, bad)
            .env_remove("SEMEL_CONFIG")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {}", stderr(&output));
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (config, word) in [
        ("[gate]\nlisten = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:1\"\n", "gate.admin"),
        ("[route.a]\nmatch = \"POST /a\"\n[route.b]\nmatch = \"POST /b\"\nwas = [\"a\"]\n", "`was` names a"),
        ("[route.a]\nmatch = \"GET /a\"\n", "line 2"),
        ("[gate]\ncores = 0\n", "gate.cores must be 1 to 1024"),
        ("[gate]\naccess_log = \"1/0\"\n", "bad share"),
        ("[gate]\naccess_log = \"1/2 off\"\n", "off is off"),
        ("[gate]\nlog_format = \"xml\"\n", "expected text or json"),
        (
            "[route.a]\nmatch = \"POST /a\"\n[route.a.fingerprint]\ninputs = [\"body\"]\nfoo = 1\n",
            "unknown field `foo`",
        ),
        ("[route.a]\nmatch = \"POST /a\"\nfingerprint = { inputs = [\"bodyy\"] }\n", "bodyy"),
        ("[defaults]\nmatch = \"POST /a\"\n", "belong to a route"),
    ] {
        let (code, error) = report(config, &[]);
        assert_eq!(code, Some(3), "{config}");
        assert!(error.as_str().unwrap().contains(word), "{config}: {error}");
    }
}

#[test]
fn every_knob_of_the_gate_is_read_and_shown() {
    let knobs = [
        ("listen", r#""127.0.0.1:9""#, "127.0.0.1:9"),
        ("admin", r#""127.0.0.1:9""#, "127.0.0.1:9"),
        ("upstream", r#""http://shop:3000/api""#, "http://shop:3000/api"),
        (
            "upstream",
            r#"{ url = "https://shop", timeout = "5s", connect_timeout = "1s", stream_idle = "1m", ca = "/ca.pem", http2 = true, host = "upstream", connections = 9 }"#,
            "https://shop, timeout 5s, connect_timeout 1s, stream_idle 1m, http2 true, host upstream, connections 9, ca /ca.pem",
        ),
        ("mode", r#""observe""#, "observe"),
        ("tls", r#"{ cert = "/c.pem", key = "/k.pem" }"#, "/c.pem"),
        (
            "limits",
            r#"{ header_timeout = "1s", body_timeout = "2s", idle_timeout = "3s", write_timeout = "4s", connections = 5, headers = 6, header_bytes = "7KiB", streams = 8, running = 9, waiting = 10, waiting_per_key = 11 }"#,
            "header_timeout 1s, body_timeout 2s, idle_timeout 3s, write_timeout 4s, connections 5, headers 6, header_bytes 7KiB, streams 8, running 9, waiting 10, waiting_per_key 11",
        ),
        ("trusted_peers", r#"["10.0.0.0/8", "::1"]"#, "10.0.0.0/8, ::1/128"),
        ("access_log", r#""off""#, "off"),
        ("access_log", r#""/var/log/semel""#, "/var/log/semel"),
        ("access_log", r#""on""#, "stderr"),
        ("access_log", r#""1/100""#, "1/100 stderr"),
        ("access_log", r#""1/10 /var/log/semel""#, "1/10 /var/log/semel"),
        ("log_format", r#""json""#, "json"),
        ("cores", "3", "3"),
        ("drain", r#""5s""#, "5s"),
        ("redis", r#""redis://u:secret@cache""#, "redis://u@cache"),
        ("at_rest", r#"{ keys = "/keys", compress = true }"#, "compressed, encrypted by /keys"),
        ("fingerprint_keys", r#""/keys""#, "/keys"),
        ("name", r#""shop""#, "shop"),
        ("was_identity", r#"["trusted:X-User"]"#, "trusted:X-User"),
        ("forget_former", "true", "true"),
        ("sweep", r#""daily 03:00""#, "daily 03:00"),
        (
            "postgres",
            r#"{ connections = 3, migrate = false, ca = "/ca" }"#,
            "connections 3, migrate false, ca /ca",
        ),
    ];
    for (name, value, shown) in knobs {
        for (config, variables) in [
            (format!("[gate]\n{name} = {value}\n"), vec![]),
            (String::new(), vec![(format!("SEMEL_GATE_{}", name.to_uppercase()), value)]),
        ] {
            let variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let (code, report) = report(&config, &variables);
            assert_eq!(code, Some(0), "{config} {report}");
            let upstream = report["gate"]["upstream_settings"].as_str();
            let found = report["gate"][name].as_str().filter(|_| name != "upstream").or(upstream);
            assert!(found.is_some_and(|found| found.starts_with(shown)), "{name}: {found:?}");
            assert!(!report.to_string().contains("secret"));
        }
    }
}

#[test]
fn settings_of_the_gate_that_cannot_be_are_refused_by_name() {
    for (setting, named) in [
        (r#"upstream = "http://""#, "upstream"),
        (r#"upstream = "http://x:99999""#, "gate.upstream"),
        (r#"upstream = { url = "http://x", ca = "/ca" }"#, "https only"),
        (r#"upstream = { url = "http://x", timeout = "0s" }"#, "gate.upstream.timeout"),
        (r#"upstream = { url = "http://x", connections = 0 }"#, "gate.upstream.connections"),
        (r#"upstream = { url = "http://x", colour = "red" }"#, "colour"),
        (r#"limits = { header_timeout = "0s" }"#, "gate.limits.header_timeout"),
        (r#"limits = { connections = 0 }"#, "gate.limits.connections"),
        (r#"trusted_peers = ["shop"]"#, "gate.trusted_peers"),
        (r#"at_rest = {}"#, "gate.at_rest"),
        (r#"sweep = "often""#, "daily 03:00"),
        (r#"redis = "http://cache""#, "redis://"),
        (r#"tls = { cert = "/c.pem" }"#, "key"),
    ] {
        let (code, error) = report(&format!("[gate]\n{setting}\n"), &[]);
        assert_eq!(code, Some(3), "{setting}");
        assert!(error.as_str().is_some_and(|error| error.contains(named)), "{setting}: {error}");
    }
    for (identity, named) in
        [("jwt:keys,colour=red", "colour"), ("jwt:,issuer=x", "jwt:"), ("check:ftp://x", "check:URL")]
    {
        let (code, error) = report(&format!("identity = \"{identity}\"\n"), &[]);
        assert!(code == Some(3) && error.as_str().unwrap().contains(named), "{identity}: {error}");
    }
    let probe = "[route.a]\nmatch = \"POST /a/{id}\"\non_unknown = { probe = \"http://x/{key}/{other}\" }\n";
    let (code, error) = report(probe, &[]);
    assert!(code == Some(3) && error.as_str().unwrap().contains("{other}"), "{error}");
    let (code, report) = report("[route.a]\nmatch = \"POST /a\"\nguarantee = \"atomic\"\n", &[]);
    assert!(code == Some(1) && report["safe"] == false, "{report}");
    assert_eq!(report["refused"][0]["part"], "gate");
}

#[test]
fn what_is_kept_and_replayed_can_be_said_in_the_file() {
    let file = "[defaults]\nage = \"header\"\nguard = { generated_at = \"/at\", cap = \"1h\", grace = \"1m\" }\n\
         [route.a]\nmatch = \"POST /a\"\nage = \"none\"\nguard = \"none\"\nreplay = \"duplicate 200\"\n\
         record = { \"400-499\" = \"release\", \"404\" = \"settle\" }\nrecord_lifetime = \"forever\"\n";
    let (code, report) = report(file, &[]);
    assert_eq!(code, Some(0), "{report}");
    let shown = report.to_string();
    for part in ["404 settle, 400-499 release", "duplicate 200", "forever"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let of = |name: &str| report["profiles"][name].to_string();
    assert!(
        of("defaults").contains("generated_at /at") && !of("route.a").contains("generated_at /at"),
        "{shown}"
    );
    for (bad, said) in [
        ("record = { \"4xx\" = \"settle\" }", "4xx"),
        ("record = { \"499-400\" = \"settle\" }", "499-400"),
        ("replay = \"duplicate 404\"", "duplicate 200"),
    ] {
        let output = check_with(&format!("[route.a]\nmatch = \"POST /a\"\n{bad}\n"), &[], &[]);
        assert!(
            output.status.code() == Some(3) && stderr(&output).contains(said),
            "{bad}: {}",
            stderr(&output)
        );
    }
}

const RELAY: &str = r#"
identity = "trusted:X-User"
[relay]
debounce = "1s"
[relay.target.scores]
url = "http://127.0.0.1:9/scores/{lane}"
body = '{{"score":{after}}}'
tier = "read-back"
late_window = "1s"
read = { url = "http://127.0.0.1:9/scores/{lane}", value = "/score" }
"#;

#[test]
fn what_a_relay_or_an_outbox_would_refuse_is_refused_here() {
    let (code, found) = report(RELAY, &[]);
    assert_eq!((code, found["safe"].as_bool()), (Some(0), Some(true)), "{found}");
    assert_eq!(found["relay"]["targets"]["scores"]["tier"], "read-back");
    assert_eq!(found["relay"]["limits"], "bodies 256MiB, body_deadline 5m");
    assert_eq!(found["outbox"], Value::Null, "the file does not speak of one");
    for (part, config, named) in [
        ("relay", RELAY.replace("read-back", "hopeful"), "hopeful"),
        ("relay", RELAY.replace("debounce", "client_max_age = \"30d\"\ndebounce"), "retention.completed"),
        ("relay", RELAY.replace("debounce", "surprise = 1\ndebounce"), "surprise"),
        ("relay", RELAY.replace("debounce", "admin = \"0.0.0.0:7421\"\ndebounce"), "admin-token-file"),
        ("relay", RELAY.replace("debounce", "redis = \"http://cache\"\ndebounce"), "redis://"),
        ("relay", RELAY.replace("debounce", "poll = \"1h\"\ndebounce"), "relay.poll"),
        ("relay", RELAY.replace("debounce", "drain = \"soon\"\ndebounce"), "drain = \"soon\""),
        (
            "relay",
            RELAY.replace("late_window", "reducer = \"median\"\nlate_window"),
            "expected sum, last, max",
        ),
        (
            "relay",
            RELAY.replace("late_window", "limit_scope = \"all\"\nlate_window"),
            "expected credential, target",
        ),
        (
            "relay",
            RELAY.replace("debounce", "limits = { bodies = \"1KiB\" }\ndebounce"),
            "relay.limits.bodies must be at least 1MiB",
        ),
        (
            "outbox",
            "[outbox]\nlimits = { body_deadline = \"0s\" }\n".to_owned(),
            "outbox.limits.body_deadline",
        ),
        ("outbox", "[outbox]\nmax_age = \"soon\"\n".to_owned(), "max_age"),
        ("outbox", "[outbox]\nkeep = \"soon\"\n".to_owned(), "keep = \"soon\""),
        ("outbox", "[outbox]\nkeep = \"soon\"\n".to_owned(), "expected a duration"),
        ("outbox", "[outbox]\nhead = \"stop\"\n".to_owned(), "expected skip, block"),
        ("outbox", "[outbox]\nstore = \"postgres://h/d\"\n".to_owned(), "in a file of its own"),
        ("outbox", "[outbox]\nlisten = \"127.0.0.1:7410\"\n".to_owned(), "token-file"),
        ("outbox", "[outbox]\nsurprise = 1\n".to_owned(), "surprise"),
        ("gate", "[gate]\nadmin = \"0.0.0.0:7401\"\n".to_owned(), "token"),
    ] {
        let (code, found) = report(&config, &[]);
        assert_eq!((code, found["safe"].as_bool()), (Some(1), Some(false)), "{part}, {named}: {found}");
        let refused = found["refused"].as_array().unwrap();
        let is_named =
            |refused: &Value| refused["part"] == part && refused["message"].as_str().unwrap().contains(named);
        assert!(refused.iter().any(is_named), "{part}, {named}: {found}");
        let text = stdout(&check_with(&config, &[], &[]));
        assert!(text.contains(&format!("`semel serve {part}` will not start")), "{text}");
    }
    let missing = RELAY.replace("debounce", "admin_token_file = \"/nowhere/token\"\ndebounce");
    let (code, found) = report(&missing, &[]);
    assert_eq!(code, Some(0), "a file may be on another machine: {found}");
    assert!(found["warnings"].to_string().contains("/nowhere/token"), "{found}");
    let (_, found) = report(RELAY, &[("SEMEL_RELAY_DEBOUNCE", "9s")]);
    assert_eq!(found["relay"]["targets"]["scores"]["debounce"], "9s");
    assert!(!found["warnings"].to_string().contains("SEMEL_RELAY"), "{found}");
}

#[test]
fn one_file_for_gate_and_relay_is_pointed_out() {
    let both = format!("store = \"sqlite:one.db\"\n{RELAY}\n[gate]\nupstream = \"http://127.0.0.1:9\"\n");
    let (_, found) = report(&both, &[]);
    assert!(found["warnings"].to_string().contains("relay.store"), "{found}");
}

#[test]
fn what_is_protected_is_said_and_a_file_without_routes_protects_every_path() {
    for config in
        ["", "[gate]\nupstream = \"http://127.0.0.1:3000\"\n", "[defaults]\nretry_window = \"2d\"\n"]
    {
        let output = check_with(config, &[], &[]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{config}: {text}");
        assert!(text.contains("protects               every method but GET"), "{config}: {text}");
        assert!(!text.contains("nothing is protected"), "{config}: {text}");
    }
    let routed = stdout(&check_with("[route.pay]\nmatch = \"POST /pay\"\n", &[], &[]));
    assert!(
        routed.contains("protects               POST /pay as pay (fenced, when a key is present)"),
        "{routed}"
    );
    let observing = stdout(&check_with("[gate]\nmode = \"observe\"\n", &[], &[]));
    assert!(
        observing.contains("protects               nothing") && observing.contains("warning: mode observe"),
        "{observing}"
    );
}

#[test]
fn a_key_is_optional_with_and_without_a_file_and_required_where_the_settings_say_so() {
    for config in ["", "[defaults]\nprofile = \"ietf\"\n", "[route.a]\nmatch = \"POST /a\"\n"] {
        let (_, report) = report(config, &[]);
        for (name, profile) in report["profiles"].as_object().unwrap() {
            assert_eq!(profile["settings"]["key"], "optional", "{config}: {name}");
        }
    }
    let (_, report) = report("[defaults]\nkey = \"required\"\n[route.a]\nmatch = \"POST /a\"\n", &[]);
    assert_eq!(report["profiles"]["route.a"]["settings"]["key"], "required");
}

#[test]
fn no_password_is_printed_not_even_in_an_error() {
    for config in [
        "[gate]\nupstream = \"http://user:hunter2@db:99999/\"\n",
        "[gate]\nupstream = \"ftp://user:hunter2@db/\"\n",
        "[gate]\nupstream = { url = \"http://user:hunter2@db/\", colour = 1 }\n",
        "store = \"mysql://user:hunter2@db/shop\"\n",
        "[gate]\nredis = \"http://user:hunter2@db/\"\n",
        "identity = \"check:http://user:hunter2@db:99999/\"\n",
        "[relay]\nstore = \"mysql://user:hunter2@db/shop\"\n",
        "[relay]\nredis = \"http://user:hunter2@db/shop\"\n",
        "[relay.target.a]\nurl = \"ftp://user:hunter2@db/shop\"\n",
        "[outbox]\nupstream = \"ftp://user:hunter2@db/\"\n",
        "[route.a]\nmatch = \"POST /a\"\non_unknown = { probe = \"ftp://user:hunter2@db/{key}\" }\n",
    ] {
        for args in [&[][..], &["--json"]] {
            let output = check_with(config, args, &[]);
            let said = [stdout(&output), stderr(&output)].concat();
            assert_ne!(output.status.code(), Some(0), "{config}: {said}");
            assert!(!said.contains("hunter2"), "{config}: {said}");
        }
    }
}

#[test]
fn a_file_about_other_parts_only_is_not_drowned_in_the_gates_settings() {
    let text = stdout(&check_with("[outbox]\nupstream = \"http://127.0.0.1:3000\"\n", &[], &[]));
    assert!(text.contains("[outbox]") && !text.contains("admin_read_token_file"), "{text}");
    let full = stdout(&check_with("[gate]\nupstream = \"http://127.0.0.1:3000\"\n", &[], &[]));
    assert!(full.contains("admin_read_token_file  none"), "names and values are apart: {full}");
    assert!(full.contains("max_body               1MiB"), "sizes are written as they are read: {full}");
}

const MESH: &str = r#"
[broker]
dedupe_retention_days = 8
budget = "100/60s"

[outbox]
broker = "http://127.0.0.1:7430"
mesh = "team"

[[outbox.receive]]
topics = ["news"]
direct = true
credential = "file:alice.token"
"#;

#[test]
fn what_a_broker_or_a_receiver_would_refuse_is_refused_here() {
    let (code, found) = report(MESH, &[]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found["broker"]["retention"].as_str().is_some_and(|text| text.contains("8d")), "{found}");
    let receives = "topic:news of team at http://127.0.0.1:7430, direct of team at http://127.0.0.1:7430";
    assert_eq!(found["outbox"]["receives"], receives, "{found}");
    for (part, text, complaint) in [
        ("broker", MESH.replace("days = 8", "days = 6"), "7 days"),
        ("broker", MESH.replace("budget", "identity = \"authorization\"\nbudget"), "names no mesh"),
        ("broker", MESH.replace("budget", "limits = { bodies = \"1MiB\" }\nbudget"), "broker.limits.bodies"),
        ("broker", MESH.replace("budget", "admin = \"0.0.0.0:7431\"\nbudget"), "admin-token-file"),
        ("broker", MESH.replace("budget", "surprise = 1\nbudget"), "surprise"),
        ("outbox", MESH.replace("mesh = \"team\"", ""), "outbox.mesh"),
        ("outbox", MESH.replace("\"news\"", "\"news\", \"news\""), "twice"),
        ("outbox", MESH.replace("file:alice", "alice"), "file:PATH"),
    ] {
        let (code, found) = report(&text, &[]);
        let refused = found["refused"].as_array().cloned().unwrap_or_default();
        let is_said = refused.iter().any(|refused| {
            refused["part"] == part && refused["message"].as_str().is_some_and(|why| why.contains(complaint))
        });
        assert!(code == Some(1) && is_said, "{complaint}: {code:?} {found}");
    }
}
