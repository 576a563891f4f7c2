//! A hook that a container runtime runs before a container with a claimed device starts (OCI createRuntime).
//!
//! It finds the container's cgroup and has its device memory limited: by the kernel's controller, which it tells
//! itself, or by the GPU's driver, which only the agent talks to. Or it has the agent move a network interface into the
//! network of the container's first process. Whatever fails makes the container fail to start, with one line that says
//! why: nothing runs unlimited that is said to be limited, or without an interface that it was promised.

mod agent;
mod cgroup;
mod dmem;
mod oci;
mod options;

use std::io::Read;
use std::process::ExitCode;

use options::{Options, Task};

/// Bytes of an OCI state that are read at most; runtimes write some hundreds.
const LONGEST_STATE: u64 = 1 << 20;

fn main() -> ExitCode {
    let failed = |why: String| {
        eprintln!("dra-agent-hook: {why}");
        ExitCode::FAILURE
    };
    match Options::read(std::env::args().skip(1)) {
        Ok(options) => match run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(format!("{}: {why}", options.task.failure())),
        },
        Err(why) => failed(why),
    }
}

fn run(options: &Options) -> Result<(), String> {
    let mut state = String::new();
    std::io::stdin()
        .take(LONGEST_STATE)
        .read_to_string(&mut state)
        .map_err(|error| format!("the container's state cannot be read: {error}"))?;
    let pid = oci::pid(&state).map_err(|why| format!("the container's state: {why}"))?;
    match &options.task {
        Task::Dmem { region, bytes } => {
            let cgroup = cgroup::of_process(&options.proc, pid)?;
            dmem::limit(&options.cgroups, &cgroup, region, *bytes)
        }
        Task::Limit(asked) => agent::limit(asked, &cgroup::of_process(&options.proc, pid)?),
        Task::Interface(asked) => agent::move_interface(asked, pid),
    }
}
