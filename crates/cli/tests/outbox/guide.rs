//! The guide's commands run as they are written, and its settings are settings.

use std::path::Path;
use std::process::Command;

const GUIDE: &str = include_str!("../../../../docs/guides/outbox.md");

fn blocks(language: &str) -> Vec<&str> {
    let open = format!("```{language}\n");
    GUIDE.split(&open).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_commands_of_the_guide_run() {
    let folder = tempfile::tempdir().unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let blocks = blocks("sh");
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let output = Command::new("sh")
            .args(["-e", "-c", block])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{block}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_settings_of_the_guide_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let start = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["serve", "outbox", "--config", file.to_str().unwrap()])
            // A folder that is not there: what is wrong with the file comes first.
            .args(["--store", "sqlite:/nowhere/at/all/outbox.db"])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let settings = blocks("toml")[0];
    assert_eq!(start(settings).0, Some(4), "{:?}", start(settings));
    let (code, why) = start(&settings.replace("max_age  = \"20h\"", "max_age = \"30d\""));
    assert!(code == Some(3) && why.contains("max_age"), "{why}");
    let (code, why) = start(&settings.replace("upstream", "upsteam"));
    assert!(code == Some(3) && why.contains("upsteam"), "{why}");
}
