//! A hook that a container runtime runs before a container with a claimed device starts (OCI createRuntime).
//!
//! It limits the device memory of the container's cgroup: with the kernel's controller, or through the agent, which
//! calls the GPU's driver. Or it requests that the agent move a network interface into the network namespace of the
//! container's first process. If a task fails, the container does not start, and the hook prints one line with the
//! reason: a container never runs without its limit or its interface.

mod agent_client;
mod cgroup;
mod dmem;
mod oci;
mod options;

use std::io::Read;
use std::process::ExitCode;

use options::{Options, Task};

/// The maximum size of an OCI state; runtimes write some hundreds of bytes.
const MAX_STATE_BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    let failed = |error: String| {
        eprintln!("dra-agent-hook: {error}");
        ExitCode::FAILURE
    };
    // For the build, which checks that it ships this version.
    if std::env::args_os().skip(1).eq(["--version"]) {
        println!("dra-agent-hook {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => match run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(format!("{}: {error}", options.task.failure())),
        },
        Err(error) => failed(error),
    }
}

fn run(options: &Options) -> Result<(), String> {
    let mut state = String::new();
    std::io::stdin()
        .take(MAX_STATE_BYTES)
        .read_to_string(&mut state)
        .map_err(|error| format!("the container's state cannot be read: {error}"))?;
    let pid = oci::pid(&state).map_err(|error| format!("the container's state: {error}"))?;
    match &options.task {
        Task::Dmem { region, bytes } => {
            let cgroup = cgroup::of_process(&options.proc, pid)?;
            dmem::limit(&options.cgroups, &cgroup, region, *bytes)
        }
        Task::Limit(request) => {
            agent_client::limit_memory(request, &cgroup::of_process(&options.proc, pid)?)
        }
        Task::Interface(request) => agent_client::move_interface(request, pid),
    }
}
