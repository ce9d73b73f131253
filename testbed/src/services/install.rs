//! Installs missing servers with apt-get where that is allowed, and otherwise says exactly what to install.
//! Never asks a question and never types a password.

use std::path::Path;
use std::process::{Command, Stdio};

use super::find::Missing;
use super::{POSTGRES_VARIABLE, REDIS_VARIABLE, server};
use crate::failure::Failure;
use crate::os;

/// Whether missing servers may be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    InstallIfMissing,
    NeverInstall,
}

/// How apt-get becomes root here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Apt {
    AsRoot,
    ThroughSudo,
}

/// Installs the packages of what is missing. Fails, with what to do by hand, where it may not.
pub(crate) fn install(missing: &[Missing], permission: Permission, log: &Path) -> Result<(), Failure> {
    let apt = match permission {
        Permission::InstallIfMissing => apt(),
        Permission::NeverInstall => None,
    };
    let Some(apt) = apt else { return Err(Failure::Failed(advice(missing))) };
    let packages: Vec<&str> = missing.iter().map(|server| debian_package(*server)).collect();
    eprintln!("xtask: {} missing; installing with apt-get", packages.join(" and "));
    step(apt, &["update"], "updating the package lists", log)?;
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(&packages);
    step(apt, &args, &format!("installing {}", packages.join(" ")), log)
}

/// Installs one package where that is allowed and possible.
pub fn install_package(package: &str, permission: Permission, log: &Path) -> Result<(), Failure> {
    let apt = match permission {
        Permission::InstallIfMissing => apt(),
        Permission::NeverInstall => None,
    };
    let Some(apt) = apt else {
        return Err(Failure::Failed(format!("there is no apt-get to install {package} with")));
    };
    step(apt, &["update"], "updating the package lists", log)?;
    step(apt, &["install", "-y", "--no-install-recommends", package], &format!("installing {package}"), log)
}

/// What to do by hand.
pub(crate) fn advice(missing: &[Missing]) -> String {
    let names: Vec<&str> = missing
        .iter()
        .map(|server| match server {
            Missing::Postgres => "PostgreSQL (initdb, postgres)",
            Missing::Redis => "Redis (redis-server or valkey-server)",
            Missing::Python => "Python 3.10 or later with venv",
            Missing::Promtool => "promtool (of Prometheus)",
        })
        .collect();
    let packages =
        |of: fn(Missing) -> &'static str| missing.iter().map(|m| of(*m)).collect::<Vec<_>>().join(" ");
    format!(
        "the tests need {}, which this machine lacks. Install it:\n  \
         Debian, Ubuntu   sudo apt-get install {}\n  \
         Fedora           sudo dnf install {}\n  \
         macOS            brew install {}\n\
         or set {POSTGRES_VARIABLE} and {REDIS_VARIABLE} to the URLs of servers that are running.\n\
         Tests that need no server: cargo xtask test --fast",
        names.join(" and "),
        packages(debian_package),
        packages(fedora_package),
        packages(brew_package),
    )
}

fn debian_package(server: Missing) -> &'static str {
    match server {
        Missing::Postgres => "postgresql",
        Missing::Redis => "redis-server",
        Missing::Python => "python3-venv",
        Missing::Promtool => "prometheus",
    }
}

fn fedora_package(server: Missing) -> &'static str {
    match server {
        Missing::Postgres => "postgresql-server",
        Missing::Redis => "valkey",
        Missing::Python => "python3",
        Missing::Promtool => "golang-github-prometheus",
    }
}

fn brew_package(server: Missing) -> &'static str {
    match server {
        Missing::Postgres => "postgresql@17",
        Missing::Redis => "redis",
        Missing::Python => "python",
        Missing::Promtool => "prometheus",
    }
}

/// How apt-get may be used here, if at all.
fn apt() -> Option<Apt> {
    if !silently_succeeds(Command::new("apt-get").arg("--version")) {
        return None;
    }
    if os::is_root() {
        return Some(Apt::AsRoot);
    }
    silently_succeeds(Command::new("sudo").args(["-n", "true"])).then_some(Apt::ThroughSudo)
}

fn silently_succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn step(apt: Apt, args: &[&str], what: &str, log: &Path) -> Result<(), Failure> {
    eprintln!("xtask: {what}");
    let mut command = match apt {
        Apt::AsRoot => Command::new("env"),
        Apt::ThroughSudo => {
            let mut command = Command::new("sudo");
            command.args(["-n", "env"]);
            command
        }
    };
    // Another apt-get may be at work; waiting for it beats failing because of it.
    command
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"])
        .args(args);
    server::run_logged(&mut command, what, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_packages_of_each_system_and_the_way_without_them() {
        let both = advice(&[Missing::Postgres, Missing::Redis]);
        for part in [
            "apt-get install postgresql redis-server",
            "dnf install postgresql-server valkey",
            "brew install postgresql@17 redis",
            "SEMEL_TEST_POSTGRES",
            "SEMEL_TEST_REDIS",
            "--fast",
        ] {
            assert!(both.contains(part), "{part} is not in:\n{both}");
        }
    }

    #[test]
    fn advice_does_not_name_what_is_there() {
        assert!(!advice(&[Missing::Redis]).contains("initdb"));
    }

    #[test]
    fn without_permission_nothing_is_installed() {
        let log = Path::new("/nonexistent/never-written");
        let failure = install(&[Missing::Redis], Permission::NeverInstall, log).unwrap_err();
        assert!(failure.to_string().contains("apt-get install redis-server"));
    }
}
