//! A hook that a container runtime runs before a container with a share of a GPU starts (OCI createRuntime).
//!
//! It finds the container's cgroup and has its device memory limited: by the kernel's controller, which it tells
//! itself, or by the GPU's driver, which only the agent talks to. Whatever fails makes the container fail to start, with
//! one line that says why: nothing runs unlimited that is said to be limited.

mod agent;
mod cgroup;
mod dmem;
mod oci;
mod options;

use std::io::Read;
use std::process::ExitCode;

use options::{Limit, Options};

/// Bytes of an OCI state that are read at most; runtimes write some hundreds.
const LONGEST_STATE: u64 = 1 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("dra-agent-hook: the container's share of a GPU cannot be limited: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let options = Options::read(std::env::args().skip(1))?;
    let mut state = String::new();
    std::io::stdin()
        .take(LONGEST_STATE)
        .read_to_string(&mut state)
        .map_err(|error| format!("the container's state cannot be read: {error}"))?;
    let pid = oci::pid(&state).map_err(|why| format!("the container's state: {why}"))?;
    let cgroup = cgroup::of_process(&options.proc, pid)?;
    match &options.limit {
        Limit::Dmem { region, bytes } => dmem::limit(&options.cgroups, &cgroup, region, *bytes),
        Limit::Agent { socket, claim, key } => agent::limit(socket, claim, key, &cgroup),
    }
}
