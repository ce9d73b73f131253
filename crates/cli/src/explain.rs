//! `semel explain`: what semel makes of a request, without running it. Reads requests and prints readings; what a reading
//! says is decided in [`reading`].

#[cfg(test)]
mod agreement;
mod reading;
mod request;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use semel_contract::identity::{Caller, Identity};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::presets;

use crate::config::{Config, Setting, Variables};
use crate::exit::{Exit, Stop};
use crate::output_failed;
use reading::Reading;
use request::Request;

/// Longest line that `--jsonl` reads.
const LINE_BYTES_MAX: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  semel explain --path /orders --header 'Idempotency-Key: \"abc\"' --header 'Authorization: Bearer a' --body '{\"b\":1}'
  semel explain --jsonl < requests.jsonl
      with one request per line: {\"method\",\"path\",\"headers\":[[name,value]…],\"body\":\"…\" or \"body_base64\"}";

/// Show what semel makes of a request, without running it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("content").args(["body", "body_file"]))]
pub(crate) struct Args {
    /// The request's method.
    #[arg(long, default_value = "POST")]
    method: String,
    /// The request's path, with its query.
    #[arg(long, required_unless_present = "jsonl")]
    path: Option<String>,
    /// A header line, `Name: value`; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "LINE")]
    headers: Vec<String>,
    /// The body as text.
    #[arg(long)]
    body: Option<String>,
    /// A file with the body; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// The configuration to apply; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A preset to apply as it stands, instead of the settings: ietf, stripe, walker, agents, scores, feed, mesh.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Who sends requests, instead of what the configuration says.
    #[arg(long, value_name = "SPEC")]
    identity: Option<String>,
    /// The verified principal, for identities that only a verification can tell (jwt, check).
    #[arg(long)]
    principal: Option<String>,
    /// The verified tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Read one request per line from standard input and print one JSON object per line.
    #[arg(long, conflicts_with_all = ["path", "headers", "content"])]
    jsonl: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let reader = Reader::new(args)?;
    if args.jsonl {
        return lines(&reader);
    }
    let reading = reader.read(&one_request(args)?);
    let text = if args.json { format!("{}\n", one_line(&reading.json())) } else { reading.text() };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

/// What requests are read with.
pub(crate) struct Reader {
    config: Config,
    caller: Option<Caller>,
}

impl Reader {
    fn new(args: &Args) -> Result<Self, Stop> {
        let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
        let beside = Path::new("semel.toml");
        let named = args.config.as_deref().or_else(|| variables.config().map(Path::new));
        let path = named.or_else(|| beside.exists().then_some(beside));
        let mut config = Config::load(path, &variables)?;
        let usage = |message: String| Stop::new(Exit::Usage, message);
        if let Some(name) = &args.profile {
            let names = || presets::PRESETS.map(|(name, _)| name).join(", ");
            let profile = presets::preset(name)
                .ok_or_else(|| usage(format!("there is no profile {name:?}; there are {}", names())))?;
            for route in &mut config.routes {
                route.profile = profile.clone();
            }
            config.defaults = profile;
        }
        if let Some(identity) = &args.identity {
            config.identity = <Identity as Setting>::read(identity).map_err(usage)?;
            for route in &mut config.routes {
                route.identity = None;
            }
        }
        let caller = match (&args.principal, &args.tenant) {
            (Some(principal), tenant) => {
                let caller = Caller::verified(tenant.clone(), principal.clone());
                Some(caller.map_err(|problem| usage(format!("--principal: {}", problem.detail)))?)
            }
            (None, Some(_)) => return Err(usage("--tenant needs --principal beside it".to_owned())),
            (None, None) => None,
        };
        Ok(Self { config, caller })
    }

    fn read(&self, request: &Request) -> Reading {
        Reading::of(&self.config, self.caller.as_ref(), request)
    }
}

fn one_request(args: &Args) -> Result<Request, Stop> {
    let body = match (&args.body, &args.body_file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(path)) => read_body(path)?,
        (None, None) => Vec::new(),
    };
    let line = |line: &String| {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| Stop::new(Exit::Usage, format!("--header {line:?}: expected 'Name: value'")))?;
        Ok((name.to_owned(), value.as_bytes().to_vec()))
    };
    let headers = args.headers.iter().map(line).collect::<Result<_, Stop>>()?;
    Ok(Request { method: args.method.clone(), path: args.path.clone().unwrap_or_default(), headers, body })
}

fn read_body(path: &PathBuf) -> Result<Vec<u8>, Stop> {
    let mut body = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut body)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut body))
    };
    read.map_err(|error| {
        Stop::new(Exit::Io, format!("failed to read the body from {}: {error}", path.display()))
    })?;
    Ok(body)
}

/// Reads requests line by line. A malformed line gets an answer of its own and does not stop the rest.
fn lines(reader: &Reader) -> Result<Exit, Stop> {
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|error| Stop::new(Exit::Io, format!("failed to read standard input: {error}")))? == 0
        {
            break;
        }
        let is_cut = line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n');
        let request = if is_cut {
            skip_line(&mut input)
                .map_err(|error| Stop::new(Exit::Io, format!("failed to read standard input: {error}")))?;
            Err(Problem::new(
                Kind::RequestMalformed,
                format!("the line is longer than {LINE_BYTES_MAX} bytes"),
            ))
        } else {
            Request::parse(&line)
        };
        let reading = match request {
            Ok(request) => reader.read(&request),
            Err(problem) => Reading::refused(problem),
        };
        writeln!(output, "{}", one_line(&reading.json())).map_err(|error| output_failed(&error))?;
        // Whoever writes a line and waits for its answer gets it.
        if input.buffer().is_empty() {
            output.flush().map_err(|error| output_failed(&error))?;
        }
    }
    output.flush().map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

/// The JSON text with the characters escaped that some readers take for the end of a line.
fn one_line(value: &serde_json::Value) -> String {
    let mut text = value.to_string();
    for (character, escape) in [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")] {
        if text.contains(character) {
            text = text.replace(character, escape);
        }
    }
    text
}

/// Passes over the rest of a line without keeping it.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let (used, ends) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if ends {
            return Ok(());
        }
    }
}
