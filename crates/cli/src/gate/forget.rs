//! `semel gate forget`: finds whose records are meant, shows what will be erased, asks, and has it done.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::confirm::{confirm, counted};
use super::show::query;
use super::table::plain;
use super::way::Way;
use super::{Said, text};
use crate::exit::{Exit, Stop};

/// Records that are looked at in one go, and how often, where a principal is named by its beginning.
const PAGE: usize = 1000;
const PAGES_MAX: usize = 100;

/// Whom to forget.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Erases what is settled, unkept, released or sealed, and the principal's counts. Claims and unknown outcomes stay: erase \
again once they are settled. Of an erased record only the hash of its key stays until clients stop retrying, so that a \
retry is answered 409 `answer-not-kept` and does not run again. The audit trail says how many records were erased, and not \
whose.

Exits 5, and erases nothing, when no record is of this principal, or when it was not confirmed.")]
pub(crate) struct Args {
    /// The principal in full, as `semel gate show` prints it. At a terminal, where it is shown and confirmed, the beginning
    /// will do where only one begins so.
    #[arg(value_name = "PRINCIPAL", required_unless_present = "named")]
    principal: Option<String>,
    /// The same, as an option.
    #[arg(long = "principal", value_name = "PRINCIPAL", conflicts_with = "principal")]
    named: Option<String>,
    /// The principal's tenant, where identities have one; without it, the principal of that name without a tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Why; it stands in the audit trail, and so should name nobody.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Erase without asking. Takes the full name.
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Forgets.
pub(crate) async fn forget(way: &Way, args: &Args) -> Result<Said, Stop> {
    let meant = args.principal.as_ref().or(args.named.as_ref()).cloned().unwrap_or_default();
    let found = Found::look(way, &meant, args.tenant.as_deref()).await?;
    if args.yes && found.principal != meant {
        // Whoever repeats an erasure by a script would erase somebody else, who begins so.
        let why = format!(
            "no record is of a principal {meant:?}, and nothing was erased; {:?} begins so: --yes takes the full name",
            found.principal
        );
        return Err(Stop::new(Exit::Refused, why));
    }
    confirm(&found.preview(), args.yes)?;
    let body = json!({"principal": found.principal, "tenant": args.tenant, "reason": args.reason});
    let mut value = way.post("/v1/forget", body).await?;
    let count = |name: &str| value[name].as_u64().unwrap_or(0);
    let mut shown =
        format!("erased {} of {}\n", counted(count("forgotten"), "record"), plain(&found.principal));
    match count("left") {
        0 => {}
        1 => shown.push_str("1 is claimed or unknown and stays; forget again once it is settled\n"),
        left => shown.push_str(&format!(
            "{left} are claimed or unknown and stay; forget again once they are settled\n"
        )),
    }
    value["principal"] = json!(found.principal);
    Ok(Said { text: shown, value })
}

/// Whose records there are, and in which states.
struct Found {
    principal: String,
    states: BTreeMap<String, u64>,
}

impl Found {
    /// The one principal of this name, or whose name begins so.
    async fn look(way: &Way, meant: &str, tenant: Option<&str>) -> Result<Self, Stop> {
        let refused = |why: String| Stop::new(Exit::Refused, why);
        if meant.is_empty() {
            return Err(Stop::new(Exit::Usage, "the principal is empty: say whose records are to be erased"));
        }
        if meant.contains('…') {
            return Err(refused(format!(
                "{meant:?} was cut when it was shown: take it in full from `semel gate show ID` or `semel gate list --json`, \
                 or give its beginning without the …"
            )));
        }
        let exact = records(way, Some(meant), tenant).await?;
        let (principal, records) = match exact.is_empty() {
            false => (meant.to_owned(), exact),
            true => {
                let mut all = records(way, None, tenant).await?;
                all.retain(|record| text(record, "principal").starts_with(meant));
                let names: BTreeSet<String> =
                    all.iter().map(|record| text(record, "principal").to_owned()).collect();
                let mut names = names.into_iter();
                match (names.next(), names.next()) {
                    (Some(only), None) => (only, all),
                    (None, _) => {
                        let of = tenant.map(|tenant| format!(" of tenant {tenant:?}")).unwrap_or_default();
                        return Err(refused(format!(
                            "no record is of a principal {meant:?}{of}; nothing was erased"
                        )));
                    }
                    (Some(one), Some(other)) => {
                        return Err(refused(format!(
                            "several principals begin with {meant:?}, such as {one:?} and {other:?}: say which"
                        )));
                    }
                }
            }
        };
        let mut states = BTreeMap::new();
        for record in &records {
            *states.entry(text(record, "standing").to_owned()).or_insert(0) += 1;
        }
        Ok(Self { principal, states })
    }

    fn preview(&self) -> String {
        let states: Vec<String> =
            self.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        format!(
            "This erases the finished records of {}: {}.\n\
             What is claimed or unknown stays. A retry of an erased request is refused and does not run again.\n",
            plain(&self.principal),
            states.join(", ")
        )
    }
}

/// The records of a principal, or of everybody, within a tenant.
async fn records(way: &Way, principal: Option<&str>, tenant: Option<&str>) -> Result<Vec<Value>, Stop> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    let limit = PAGE.to_string();
    for _ in 0..PAGES_MAX {
        let values = [("principal", principal), ("after", after.as_deref()), ("limit", Some(&*limit))];
        let page = way.get(&query("/v1/records", &values)).await?;
        let is_theirs = |record: &&Value| record["tenant"].as_str() == tenant;
        found.extend(page["records"].as_array().into_iter().flatten().filter(is_theirs).cloned());
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            return Ok(found);
        }
    }
    match principal {
        Some(_) => Ok(found),
        None => Err(Stop::new(
            Exit::Refused,
            "there are too many records to look for the beginning of a principal: give it in full",
        )),
    }
}
