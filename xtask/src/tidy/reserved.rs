//! What the designs write down and do not build: the order of debits is a contract for a later ledger, and two refusals are words of
//! the catalogue. Finds the contract gone, a ledger in semel's own schemas, and code that says a reserved word.

use super::files::{Tree, line_where};
use super::{Finding, Seen};

const CONTRACT: &str = "spec/recovery.md";
const SECTION: &str = "## Debit ordering";
/// What a later ledger is promised, each by the words that its rule begins with.
const RULES: [&str; 6] = [
    "1. **One transaction.**",
    "2. **Under the account's row lock.**",
    "3. **Submit order is debit order within a lane.**",
    "4. **Shortage is a balance check.**",
    "5. **A replay never debits.**",
    "6. **A refused debit is not an effect.**",
];

/// The refusals that nothing says, and where alone they stand.
const RESERVED: [&str; 2] = ["Kind::OrderingViolation", "Kind::InsufficientEnergy"];
/// Whose tables are semel's own.
const SCHEMAS: [&str; 3] = ["crates/store/", "crates/delivery/", "crates/broker/"];

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let contract = tree.text(CONTRACT).ok_or(format!("{CONTRACT} is gone"))?;
    let mut findings = judge_contract(&contract);
    let sources = tree.texts(".rs").filter(|(file, _)| file.starts_with("crates/") && file.contains("/src/"));
    let schemas =
        tree.texts(".sql").filter(|(file, _)| SCHEMAS.iter().any(|schema| file.starts_with(schema)));
    let mut count = 0;
    for (file, text) in sources.chain(schemas) {
        count += 1;
        findings.extend(judge(file, &text));
    }
    Ok(Seen { extent: format!("{count} files"), findings })
}

fn judge_contract(text: &str) -> Vec<Finding> {
    let section = text.split_once(SECTION).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let said = |rule: &&str| !section.lines().any(|line| line.starts_with(*rule));
    let line = line_where(text, |line| line == SECTION);
    let say =
        |rule: &str| Finding::new(CONTRACT, line, format!("`{SECTION}` has no rule that begins \"{rule}\""));
    RULES.iter().filter(|rule| said(rule)).map(|rule| say(rule)).collect()
}

fn judge(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        let is_table =
            SCHEMAS.iter().any(|schema| file.starts_with(schema)) && lower.contains("create table");
        if is_table && ["ledger", "debit", "energy"].iter().any(|word| lower.contains(word)) {
            findings.push(Finding::new(
                file,
                index + 1,
                "a ledger is not shipped: spec/recovery.md has its contract only",
            ));
        }
        for word in RESERVED.iter().filter(|word| line.contains(**word)) {
            findings.push(Finding::new(file, index + 1, format!("`{word}` is reserved: nothing says it")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_debits_is_a_contract_of_six_rules_and_no_ledger_is_shipped() {
        let tree = Tree::of_repository().unwrap();
        assert_eq!(check(&tree).unwrap().findings, []);
        let contract = tree.text(CONTRACT).unwrap();
        assert_eq!(
            judge_contract(&contract.replace("5. **A replay never debits.**", "5. **Perhaps.**")).len(),
            1
        );
        assert_eq!(judge_contract(&contract.replace(SECTION, "## Debts")).len(), RULES.len());
        let table = "CREATE TABLE semel.energy_ledger (id bigint);\n";
        assert_eq!(judge("crates/store/src/postgres/migrations/0099_x.sql", table).len(), 1);
        assert_eq!(judge("crates/cli/src/demo/ledger.rs", table), [], "a demo has a ledger of its own");
    }

    #[test]
    fn reserved_refusals_are_said_by_nothing() {
        assert_eq!(check(&Tree::of_repository().unwrap()).unwrap().findings, []);
        for word in RESERVED {
            assert_eq!(judge("crates/gate/src/x.rs", &format!("    Problem::from({word})\n"))[0].line, 1);
        }
    }
}
