//! Every input of the committed corpus satisfies the properties of its target.
//!
//! `tests/fuzz/corpus.py` unpacks the archives, so that one program knows their format.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use dra_fuzz::TARGETS;

fn unpack(corpus: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fuzz/corpus.py");
    let result = Command::new("python3")
        .arg(&script)
        .arg("unpack")
        .arg(corpus)
        .status();
    let status = result.unwrap_or_else(|error| panic!("python3 {}: {error}", script.display()));
    assert!(status.success(), "python3 {}: {status}", script.display());
}

fn inputs(folder: &Path) -> Vec<PathBuf> {
    let mut inputs: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    inputs
}

/// One test for all targets, because heap memory is counted for the process.
#[test]
fn every_committed_input_keeps_the_properties_of_its_target() {
    // As much stack as the main thread of a process has. `cel` alone needs it, and only unoptimized, where the parser takes
    // more than 100 KiB for one level of parentheses (rust/engine/cel/tests/small_stack.rs has the stack of a thread).
    let replay = thread::Builder::new().stack_size(8 << 20).spawn(replay);
    replay.unwrap().join().unwrap();
}

fn replay() {
    let corpus = tempfile::tempdir().unwrap();
    unpack(corpus.path());
    let mut failures = Vec::new();
    for target in TARGETS {
        let inputs = inputs(&corpus.path().join(target.name));
        assert!(!inputs.is_empty(), "target {} has no corpus", target.name);
        for input in inputs {
            let data = fs::read(&input).unwrap();
            if catch_unwind(|| target.check(&data)).is_err() {
                failures.push(format!(
                    "{} {}",
                    target.name,
                    input.file_name().unwrap().display()
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "what each of them breaks is printed above; tests/fuzz/corpus.py unpacks them: {failures:#?}"
    );
}
