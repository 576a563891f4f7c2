//! A deeply nested expression is an error if no thread can be started. It never runs on the caller's stack.
//!
//! The limit applies to a process, so the check runs in a child process.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use dra_cel::{DeviceInput, Program};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "without_room_for_a_thread";
/// Free address space: far less than the stack of the thread, and enough for everything else.
const HEADROOM_BYTES: u64 = 64 << 20;

#[test]
fn deep_work_is_an_error_where_there_is_no_thread_for_it() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let output = format!(
        "{}\n{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(run.status.success(), "{}: {output}", run.status);
    assert!(output.contains("1 passed"), "{output}");
}

fn nested(levels: usize) -> String {
    let mut expression = "true".to_owned();
    for level in 0..levels {
        expression = format!("device.driver == \"d{level}\" ? false : ({expression})");
    }
    expression
}

#[test]
#[ignore = "limits the memory of its process; the test above runs it in a child process"]
fn without_room_for_a_thread() {
    let device = DeviceInput::new("d", &dra_api::Device::default()).unwrap();
    let (flat, deep) = (nested(1), nested(100));
    let compiled = Program::compile(&deep).unwrap();
    assert_eq!(compiled.matches(&device), Ok(true));

    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let now = pages * u64::try_from(rustix::param::page_size()).unwrap();
    let before = getrlimit(Resource::As);
    let limit = Rlimit {
        current: Some(now + HEADROOM_BYTES),
        maximum: before.maximum,
    };
    setrlimit(Resource::As, limit).unwrap();
    let compiling = Program::compile(&deep).map(drop);
    let matching = compiled.matches(&device);
    let shallow = Program::compile(&flat).map(|program| program.matches(&device));
    setrlimit(Resource::As, before).unwrap();

    let why = "the expression is deeply nested, and no thread can be started for it";
    let compiling = compiling.unwrap_err().to_string();
    assert!(compiling.contains(why), "{compiling}");
    let matching = matching.unwrap_err().to_string();
    assert!(matching.contains(why), "{matching}");
    assert_eq!(shallow.unwrap(), Ok(true));
    assert_eq!(compiled.matches(&device), Ok(true));
}
