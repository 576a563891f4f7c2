//! A state directory named by a relative path. Alone in its process: it starts another one.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use dra_ledger::{Entry, Ledger};
use serde_json::json;

/// Runs the test of this name again, alone, in a separate directory.
#[test]
fn a_relative_state_directory_is_created() {
    if std::env::var_os("DRA_LEDGER_RELATIVE").is_some() {
        for state in ["state", "further/down"] {
            let claim: Entry = serde_json::from_value(json!({
                "uid": "a", "namespace": "team", "name": "a", "devices": [],
            }))
            .unwrap();
            let ledger = Ledger::open(Path::new(state), "boot").unwrap();
            ledger.start(claim, false).unwrap();
            ledger.complete("a", json!(null)).unwrap();
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_relative_state_directory_is_created"])
        .env("DRA_LEDGER_RELATIVE", "1")
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    for state in ["state", "further/down"] {
        let ledger = Ledger::open(&dir.path().join(state), "boot").unwrap();
        assert_eq!(ledger.entries().len(), 1);
    }
}
