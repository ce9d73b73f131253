//! Every command that a document or a help text shows is run as it is written: in a folder and a network of its own, so that
//! the addresses of the documents are free. What cannot be run here (other people's servers) is at least read.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A service on port 3000, as the guides have it.
const SHOP: &str = "semel up --listen :3000 --admin :0 --relay :0 --data shop";

/// The documents, and what runs before their first command.
const DOCUMENTS: [(&str, &[&str]); 10] = [
    ("README.md", &[]),
    ("docs/guides/storming.md", &["semel up"]),
    ("docs/guides/conforming.md", &["semel up"]),
    ("docs/guides/gateway.md", &[SHOP]),
    ("docs/guides/observing.md", &[SHOP]),
    ("docs/guides/configuring.md", &[SHOP]),
    ("docs/guides/deploying.md", &[SHOP]),
    ("docs/guides/clients.md", &["semel up"]),
    ("docs/guides/outbox.md", &[]),
    ("docs/guides/broker.md", &[]),
];

/// What is not run: it builds, tests or installs semel itself, or speaks to servers that are not here.
const READ_ONLY: [&str; 9] = [
    "cargo install",
    "cargo xtask",
    "api.example",
    "/etc/semel",
    "postgres://",
    "systemctl",
    "/run/secrets",
    "sudo",
    "tar ",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn binaries() -> String {
    Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().display().to_string()
}

/// The commands in the blocks of a document: fenced as `sh`, or indented by four spaces. A line that ends with a backslash goes
/// on in the next.
fn commands(text: &str) -> Vec<String> {
    let (mut found, mut fence, mut open) = (Vec::<String>::new(), None::<bool>, false);
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language == "sh") };
            continue;
        }
        let is_code = fence.unwrap_or_else(|| line.starts_with("    "));
        if !is_code {
            open = false;
            continue;
        }
        let is_command =
            ["semel ", "! semel ", "curl ", "cargo "].iter().any(|word| trimmed.starts_with(word));
        match (open, is_command) {
            (true, _) => {
                let last = found.last_mut().expect("a command was begun");
                last.push('\n');
                last.push_str(trimmed);
            }
            (false, true) => found.push(trimmed.to_owned()),
            (false, false) => continue,
        }
        open = trimmed.ends_with('\\');
    }
    found
}

/// A script that runs commands one after the other. Servers go on in the background until another takes their place; a
/// broker goes on beside the others.
fn script(before: &[&str], commands: &[String]) -> String {
    let mut script = String::from(
        "set -u\nserver() {\n\
         \x20 \"$@\" > server.log 2>&1 & pid=$!; pids=\"$pids $pid\"\n\
         \x20 for _ in $(seq 300); do\n\
         \x20   grep -qE 'ready|Ctrl-C ends|listening|try ' server.log && return 0\n\
         \x20   kill -0 $pid 2>/dev/null || break\n\
         \x20   sleep 0.1\n\
         \x20 done\n\
         \x20 echo \"FAILED to start: $*\"; cat server.log; exit 1\n}\n\
         running='' pids=''\n",
    );
    for command in before {
        script.push_str(&format!("server {command}\n"));
    }
    for command in commands {
        let line = command.replace("cargo run -p semel -- ", "semel ").replace("cargo run -- ", "semel ");
        let is_server = line.starts_with("semel up") || line.starts_with("semel serve ");
        match is_server {
            true if line.starts_with("semel serve broker") => script.push_str(&format!("server {line}\n")),
            true => script.push_str(&format!(
                "if [ -n \"$running\" ]; then kill $running; wait $running; fi\nserver {line}\nrunning=$pid\n"
            )),
            false => script.push_str(&format!(
                "{{ {line}\n}} > out.log 2>&1 || {{ echo \"FAILED ($?): {}\"; cat out.log; exit 1; }}\n",
                line.lines().next().unwrap_or_default().replace(['"', '$', '`', '\\'], "_")
            )),
        }
    }
    script.push_str("kill $pids 2>/dev/null; wait; exit 0\n");
    script
}

/// Runs a script in a folder of its own, in a network in which nothing else listens.
fn run(script: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_")) {
        shell.env_remove(name);
    }
    let path = format!("{}:{}", binaries(), std::env::var("PATH").unwrap());
    shell.args(["-c", script]).current_dir(folder.path()).env("PATH", path).stdin(Stdio::null());
    // SAFETY: between fork and exec only system calls are made.
    unsafe { shell.pre_exec(network_of_its_own) };
    let output = shell.output().expect("a shell with a network of its own");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// A network namespace whose loopback is up.
fn network_of_its_own() -> std::io::Result<()> {
    let failed = || Err(std::io::Error::last_os_error());
    // SAFETY: plain system calls on values that live here.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNET) != 0
            && libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) != 0
        {
            return failed();
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let set = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        libc::close(socket);
        if set != 0 { failed() } else { Ok(()) }
    }
}

/// Whether a command line is one: its flags and subcommands exist.
fn is_read(line: &str) -> bool {
    let ends = [" | ", " > ", " < ", " #", " &"];
    let line = ends.iter().fold(line, |line, end| line.split(end).next().unwrap_or(line)).trim_end();
    // Records and entries have numbers.
    let line = format!("{} ", line.replace('\n', " ")).replace(" ID ", " 7 ");
    let help = format!("{line} --help > /dev/null");
    let path = format!("{}:{}", binaries(), std::env::var("PATH").unwrap());
    Command::new("sh").args(["-c", &help]).env("PATH", path).status().is_ok_and(|status| status.success())
}

#[test]
fn the_commands_of_every_document_run() {
    for (document, before) in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(document)).expect(document);
        let (read, run_here): (Vec<String>, Vec<String>) = commands(&text)
            .into_iter()
            .partition(|command| READ_ONLY.iter().any(|word| command.contains(word)));
        assert!(!(read.is_empty() && run_here.is_empty()), "{document} shows no command");
        for command in read.iter().filter(|command| command.starts_with("semel ")) {
            assert!(is_read(command), "{document}: {command}");
        }
        // Guides that speak of a file have one, in pieces.
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let has_file = document.ends_with("configuring.md") || document.ends_with("broker.md");
        let file: String = blocks.filter(|_| has_file).collect();
        let write = format!("cat > semel.toml <<'EOF'\n{file}EOF\n");
        let write = if file.is_empty() { "" } else { &*write };
        let (code, said) = run(&format!("{write}{}", script(before, &run_here)));
        assert_eq!(code, Some(0), "{document}:\n{said}");
    }
}

/// Runs the client that the guide shows in a language, between what it leaves out, before `semel up`.
fn run_client(language: &str, [before, after]: [&str; 2], file: &str, command: &str) {
    let text = std::fs::read_to_string(root().join("docs/guides/clients.md")).unwrap();
    let block = format!("```{language}\n");
    let code = text.split(&block).nth(1).and_then(|rest| rest.split("```").next()).expect("a client");
    let run_it = format!("cat > {file} <<'EOF'\n{before}{code}{after}\nEOF\n{command} {file}");
    let (code, said) = run(&script(&["semel up"], &[run_it]));
    assert_eq!(code, Some(0), "{language}: {said}");
}

#[test]
fn the_python_client_of_the_guide_gets_the_first_answer_again() {
    run_client("python", ["", ""], "client.py", "python3");
}

#[test]
fn the_node_client_of_the_guide_gets_the_first_answer_again() {
    let twice = r#"
const key = randomUUID();
const send = () => sendOnce("http://127.0.0.1:7400/orders", { item: "tea", amount: 5 }, "demo", key);
const [first, again] = [await send(), await send()];
const isSame = (await first.text()) === (await again.text());
const replayed = [first, again].map((answer) => answer.headers.get("Idempotency-Replayed"));
if (first.status !== 201 || !isSame || replayed[0] || replayed[1] !== "true") throw new Error(`${replayed}`);
"#;
    run_client("js", ["", twice], "client.mjs", "node");
}

#[test]
fn the_go_client_of_the_guide_gets_the_first_answer_again() {
    let imports = ["bytes", "context", "fmt", "io", "math/rand", "net/http", "strconv", "time"];
    let imports: String = imports.iter().map(|name| format!("import \"{name}\"\n")).collect();
    let twice = r#"
func main() {
	send := func() (*http.Response, string) {
		body := []byte(`{"item":"tea","amount":5}`)
		key := "c6b8f1f4-6f0e-4b56-9d3c-0f7a2f5f8b11"
		answer, err := SendOnce(context.Background(), "http://127.0.0.1:7400/orders", "demo", key, body)
		if err != nil {
			panic(err)
		}
		said, _ := io.ReadAll(answer.Body)
		return answer, string(said)
	}
	first, said := send()
	again, saidAgain := send()
	if first.StatusCode != 201 || said != saidAgain || again.Header.Get("Idempotency-Replayed") != "true" {
		panic(saidAgain)
	}
}
"#;
    run_client("go", [&format!("package main\n\n{imports}"), twice], "client.go", "go run");
}

#[test]
fn the_commands_of_every_guide_are_at_least_read() {
    let guides = std::fs::read_dir(root().join("docs/guides")).unwrap();
    let files = guides.map(|entry| entry.unwrap().path()).chain([root().join("docs/runbook.md")]);
    for path in files.filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for command in commands(&text).iter().filter(|command| command.starts_with("semel ")) {
            assert!(is_read(command), "{}: {command}", path.display());
        }
    }
}

/// What `--help` prints, of every command and its subcommands.
fn helps(words: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(words).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let list = text.split("Commands:\n").nth(1).map(|rest| rest.split("\n\n").next().unwrap_or_default());
    let subcommands: Vec<&str> = list
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let below = subcommands.into_iter().flat_map(|name| helps(&[words, &[name]].concat()));
    below.collect::<Vec<_>>().into_iter().chain([text.clone()]).collect()
}

#[test]
fn the_commands_of_every_help_text_are_read_and_the_examples_run() {
    let mut run_here = Vec::new();
    for text in helps(&[]) {
        for line in text.lines().filter_map(|line| line.find("semel ").map(|at| (at, line))) {
            let (at, line) = line;
            // A command at the beginning of a line, or behind the question that it answers.
            let is_command = line[..at].trim().is_empty() || line[..at].ends_with("  ");
            let command = line[at..].split("   ").next().unwrap_or_default();
            if is_command && at > 0 && !command.contains('[') && !command.contains('…') {
                assert!(is_read(command), "{command}");
                if ["semel storm", "semel conform"].iter().any(|word| command.starts_with(word)) {
                    run_here.push(command.to_owned());
                }
            }
        }
    }
    assert!(run_here.len() >= 3, "{run_here:?}");
    let (code, said) = run(&script(&["semel up"], &run_here));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_commands_that_up_prints_run() {
    let script = "semel up > server.log 2>&1 & pid=$!\n\
        for _ in $(seq 300); do grep -q 'Ctrl-C ends' server.log && break; sleep 0.1; done\n\
        grep -E '^  (curl|semel|for) |^  records ' server.log | sed 's/^  records *//' > commands\n\
        [ $(wc -l < commands) -ge 5 ] || { cat server.log; exit 1; }\n\
        while read -r line; do sh -c \"$line\" > out.log 2>&1 || { echo \"FAILED: $line\"; cat out.log; exit 1; }; done < commands\n\
        for url in $(grep -oE 'http://[0-9.:]+/ ' server.log); do curl -sf $url > /dev/null || { echo \"FAILED: $url\"; cat server.log; exit 1; }; done\n\
        kill $pid; wait $pid; exit 0\n";
    let (code, said) = run(script);
    assert_eq!(code, Some(0), "{said}");
}

/// The statuses that free a key, as the guide's table of answers has them, are those of the contract.
#[test]
fn the_guides_table_of_answers_is_the_contracts() {
    use semel_contract::outcome::{Disposition, Ending, dispose};
    use semel_contract::profile::presets;
    use semel_contract::record::Guarantee;
    let guide = std::fs::read_to_string(root().join("docs/guides/gateway.md")).unwrap();
    let row =
        guide.lines().find(|line| line.starts_with("| answers 4") && line.contains("free")).expect("a row");
    let cell = row.split('|').nth(1).unwrap();
    let shown: Vec<u16> =
        cell.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let frees = |status: &u16| {
        let ending = Ending::Answered { status: *status, told: None };
        dispose(&presets::ietf(), Guarantee::Fenced, ending) == Disposition::Release
    };
    assert_eq!(shown, (200..600).filter(frees).collect::<Vec<u16>>());
}
