//! A file system that becomes read-only. Alone in its process: a process that another test starts has the locks of this
//! one until it runs its program.

#![allow(clippy::unwrap_used)]

mod claims;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use claims::{prepare, refuses_changes};
use dra_ledger::{Error, FileSystem, Ledger};

const WAIT: Duration = Duration::from_secs(10);

/// Runs the test of this name again, alone, in a new mount namespace where `DRA_LEDGER_STATE` is read-only.
/// Skipped where mounting is not permitted.
#[test]
fn a_file_system_that_was_remounted_read_only_can_be_read() {
    if let Some(state) = std::env::var_os("DRA_LEDGER_STATE") {
        let state = Path::new(&state);
        if !state.join("ledger/turn").exists() {
            let ledger = Ledger::open(state, "boot").unwrap();
            refuses_changes(&ledger);
            assert!(matches!(
                Ledger::open(state, "boot"),
                Err(Error::Locked { .. })
            ));
            return;
        }
        let shared = Ledger::open_shared(Arc::new(FileSystem), state, "boot", "a", WAIT).unwrap();
        shared.acquire_lease(WAIT).unwrap();
        assert!(matches!(shared.release("held"), Err(Error::Io { .. })));
        assert_eq!(shared.entries().len(), 1);
        shared.release_lease().unwrap();
        assert!(matches!(
            Ledger::open(state, "boot"),
            Err(Error::Locked { .. })
        ));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for shared in [false, true] {
        let state = dir.path().join(shared.to_string());
        if shared {
            drop(Ledger::open_shared(Arc::new(FileSystem), &state, "boot", "a", WAIT).unwrap());
        }
        prepare(&Ledger::open(&state, "boot").unwrap(), "held", "gpu-0").unwrap();
        let mount = |then: &str| {
            let script =
                format!("mount --bind \"$S\" \"$S\" && mount -o remount,bind,ro \"$S\" && {then}");
            Command::new("unshare")
                .args(["-m", "sh", "-c", &script])
                .env("S", &state)
                .env("T", std::env::current_exe().unwrap())
                .env("DRA_LEDGER_STATE", &state)
                .output()
        };
        if !mount("true").is_ok_and(|done| done.status.success()) {
            eprintln!("skipped: mounting is not permitted here");
            return;
        }
        let name = "a_file_system_that_was_remounted_read_only_can_be_read";
        let done = mount(&format!("exec \"$T\" --exact {name} --nocapture")).unwrap();
        assert!(done.status.success(), "shared {shared}: {done:?}");
    }
}
