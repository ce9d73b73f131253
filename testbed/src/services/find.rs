//! Finds the server programs on this machine. Looks only; installs and starts nothing.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::POSTGRES_BIN_VARIABLE;

/// Which servers are to be started here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) postgres: bool,
    pub(crate) redis: bool,
    pub(crate) python: bool,
    pub(crate) promtool: bool,
}

/// What this machine has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The folder that holds both `initdb` and `postgres`.
    pub(crate) postgres_bin: Option<PathBuf>,
    /// `redis-server`, or `valkey-server`, which speaks the same.
    pub(crate) redis: Option<PathBuf>,
    /// A `python3` that can make environments.
    pub(crate) python: Option<PathBuf>,
    /// `promtool`, which tests the rules for Prometheus.
    pub(crate) promtool: Option<PathBuf>,
}

/// A server that is wanted and not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Postgres,
    Redis,
    Python,
    Promtool,
}

impl Found {
    pub(crate) fn missing(&self, wanted: Wanted) -> Vec<Missing> {
        let postgres = (wanted.postgres && self.postgres_bin.is_none()).then_some(Missing::Postgres);
        let redis = (wanted.redis && self.redis.is_none()).then_some(Missing::Redis);
        let python = (wanted.python && self.python.is_none()).then_some(Missing::Python);
        let promtool = (wanted.promtool && self.promtool.is_none()).then_some(Missing::Promtool);
        postgres.into_iter().chain(redis).chain(python).chain(promtool).collect()
    }
}

/// Looks in the folder that `SEMEL_TEST_POSTGRES_BIN` names, in PATH, and where packages put servers.
pub(crate) fn on_this_machine() -> Found {
    let path: Vec<PathBuf> =
        std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
    let mut for_postgres: Vec<PathBuf> =
        std::env::var_os(POSTGRES_BIN_VARIABLE).map(PathBuf::from).into_iter().collect();
    for_postgres.extend(path.iter().cloned());
    for_postgres.extend(versions_newest_first(Path::new("/usr/lib/postgresql")));
    // An account without administration rights often lacks the sbin folders in its PATH.
    let beside_path = ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let beside: Vec<PathBuf> = path.into_iter().chain(beside_path).collect();
    Found {
        postgres_bin: postgres_bin(&for_postgres),
        redis: redis(&beside),
        python: python(&beside),
        promtool: beside.iter().map(|folder| folder.join("promtool")).find(|path| path.is_file()),
    }
}

/// The `bin` folders of Debian's `/usr/lib/postgresql/VERSION`, the highest version first.
fn versions_newest_first(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let mut versions: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let version = name.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| Reverse(version.clone()));
    versions.into_iter().map(|(_, bin)| bin).collect()
}

/// The first folder that holds the whole server. Links are followed: the folder that `initdb` really lives in
/// also holds the programs that nobody linked.
fn postgres_bin(folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().find_map(|folder| {
        let real = folder.join("initdb").canonicalize().ok()?;
        let folder = real.parent()?;
        (folder.join("initdb").is_file() && folder.join("postgres").is_file()).then(|| folder.to_path_buf())
    })
}

fn redis(folders: &[PathBuf]) -> Option<PathBuf> {
    let named = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    named("redis-server").or_else(|| named("valkey-server"))
}

/// The first interpreter that is whole: Debian leaves out what makes environments.
fn python(folders: &[PathBuf]) -> Option<PathBuf> {
    let is_whole = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 10))"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    folders.iter().map(|folder| folder.join("python3")).filter(|path| path.is_file()).find(is_whole)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::services::scratch::Scratch;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn newer_versions_come_first_by_number_not_by_letter() {
        let scratch = Scratch::named("find-versions").unwrap();
        for version in ["9.6", "15", "10", "not-a-version"] {
            touch(&scratch.path().join(version).join("bin/initdb"));
        }
        let bins = versions_newest_first(scratch.path());
        let expected: Vec<PathBuf> = ["15", "10", "9.6"].map(|v| scratch.path().join(v).join("bin")).into();
        assert_eq!(bins, expected);
    }

    #[test]
    fn a_link_to_initdb_leads_to_the_folder_of_the_whole_server() {
        let scratch = Scratch::named("find-links").unwrap();
        let real = scratch.path().join("real");
        let links = scratch.path().join("links");
        touch(&real.join("initdb"));
        touch(&real.join("postgres"));
        fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink(real.join("initdb"), links.join("initdb")).unwrap();
        assert_eq!(postgres_bin(&[links]), Some(real.canonicalize().unwrap()));
    }

    #[test]
    fn a_folder_with_half_a_server_does_not_count() {
        let scratch = Scratch::named("find-half").unwrap();
        touch(&scratch.path().join("initdb"));
        assert_eq!(postgres_bin(&[scratch.path().to_path_buf()]), None);
    }

    #[test]
    fn valkey_serves_where_redis_is_absent() {
        let scratch = Scratch::named("find-valkey").unwrap();
        touch(&scratch.path().join("valkey-server"));
        assert_eq!(redis(&[scratch.path().to_path_buf()]), Some(scratch.path().join("valkey-server")));
    }

    #[test]
    fn only_what_is_wanted_can_be_missing() {
        let nothing = Found { postgres_bin: None, redis: None, python: None, promtool: None };
        let none = Wanted { postgres: false, redis: false, python: false, promtool: false };
        assert_eq!(
            nothing.missing(Wanted { postgres: true, redis: true, python: true, promtool: true }),
            [Missing::Postgres, Missing::Redis, Missing::Python, Missing::Promtool]
        );
        assert_eq!(nothing.missing(Wanted { redis: true, ..none }), [Missing::Redis]);
        assert_eq!(nothing.missing(none), []);
    }
}
