//! `semel man`: the manual page, made of the same texts as `--help`.

use std::io::Write;

use clap::CommandFactory;

use crate::exit::{Exit, Stop};
use crate::{Cli, output_failed};

/// Print the manual page.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: semel man > /usr/share/man/man1/semel.1")]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> Result<Exit, Stop> {
    std::io::stdout().write_all(page().as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut page = format!(
        ".TH SEMEL 1 \"\" \"semel {version}\" \"User Commands\"\n.SH NAME\nsemel \\- {}\n",
        escaped(about.trim_end_matches('.'))
    );
    add(&mut page, &mut command, "semel");
    page
}

/// A command as a section of its own, then those below it.
fn add(page: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.render_long_help().to_string();
    page.push_str(&format!(".SH \"{}\"\n.nf\n{}\n.fi\n", name.to_uppercase(), escaped(help.trim_end())));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let name = format!("{name} {}", below.get_name());
        add(page, below, &name);
    }
}

/// A text in which nothing is a command of roff.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_section_and_no_line_is_taken_for_a_macro() {
        let page = page();
        for name in ["SEMEL", "SEMEL GATE LIST", "SEMEL SERVE OUTBOX", "SEMEL RELAY RESOLVE", "SEMEL MAN"] {
            assert!(page.contains(&format!(".SH \"{name}\"\n")), "{name}");
        }
        let macros = [".TH ", ".SH ", ".nf", ".fi"];
        let stray = page
            .lines()
            .find(|line| line.starts_with('.') && !macros.iter().any(|known| line.starts_with(known)));
        assert_eq!(stray, None);
        assert_eq!(escaped(".x\n'y\na\\b"), "\\&.x\n\\&'y\na\\eb");
    }
}
