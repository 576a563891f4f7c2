//! The hook's arguments, which the agent writes into the claim's CDI spec.

use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct Options {
    /// The unified cgroup hierarchy.
    pub(crate) cgroups: PathBuf,
    pub(crate) proc: PathBuf,
    pub(crate) task: Task,
}

/// The task of the hook, and the component that performs it.
#[derive(Debug)]
pub(crate) enum Task {
    /// The kernel limits one region of device memory.
    Dmem { region: String, bytes: u64 },
    /// The agent limits the container's memory of a device.
    Limit(AgentRequest),
    /// The agent moves a network interface into the container's network.
    Interface(AgentRequest),
}

/// A request to the agent for a device, or a share of a device, of a claim.
#[derive(Debug)]
pub(crate) struct AgentRequest {
    pub(crate) socket: PathBuf,
    pub(crate) claim: String,
    pub(crate) key: String,
}

impl Task {
    /// The first part of the error message if the task fails.
    pub(crate) fn failure(&self) -> &'static str {
        match self {
            Self::Dmem { .. } | Self::Limit(_) => {
                "the container's share of a GPU cannot be limited"
            }
            Self::Interface(_) => "the claim's network interface cannot be moved to the container",
        }
    }
}

impl Options {
    /// Parses `--name value` pairs. An unknown name is an error, because it could contain the limit.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut cgroups = PathBuf::from("/sys/fs/cgroup");
        let mut proc = PathBuf::from("/proc");
        let (mut region, mut bytes, mut socket, mut claim, mut key, mut task) =
            (None, None, None, None, None, None);
        while let Some(name) = arguments.next() {
            let name = text(name)?;
            let value = arguments
                .next()
                .ok_or_else(|| format!("argument {name} has no value"))?;
            match name.as_str() {
                "--cgroups" => cgroups = value.into(),
                "--proc" => proc = value.into(),
                "--region" => region = Some(text(value)?),
                "--bytes" => {
                    let value = text(value)?;
                    let amount = value
                        .parse()
                        .map_err(|_| format!("--bytes {value:?} is not a number"))?;
                    bytes = Some(amount);
                }
                "--socket" => socket = Some(PathBuf::from(value)),
                "--claim" => claim = Some(text(value)?),
                "--key" => key = Some(text(value)?),
                "--task" => task = Some(text(value)?),
                _ => return Err(format!("argument {name} is not known")),
            }
        }
        let task = match (region, bytes, socket, claim, key) {
            (Some(region), Some(bytes), None, None, None) if task.is_none() => {
                Task::Dmem { region, bytes }
            }
            (None, None, Some(socket), Some(claim), Some(key)) => {
                let request = AgentRequest { socket, claim, key };
                // Without --task it is a limit: specs of older versions have no --task.
                match task.as_deref() {
                    None => Task::Limit(request),
                    Some("interface") => Task::Interface(request),
                    Some(other) => return Err(format!("--task {other:?} is not known")),
                }
            }
            _ => {
                return Err("needs --region and --bytes, or --socket, --claim and --key".to_owned());
            }
        };
        Ok(Self {
            cgroups,
            proc,
            task,
        })
    }
}

/// An argument that is not a path.
fn text(argument: OsString) -> Result<String, String> {
    argument
        .into_string()
        .map_err(|argument| format!("argument {argument:?} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::{Options, Task};

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        Options::parse(arguments.iter().map(Into::into))
    }

    #[test]
    fn either_a_region_or_the_agent() {
        let options = parse(&["--region", "drm/0000:03:00.0/vram0", "--bytes", "4096"]);
        assert!(matches!(
            options.map(|options| options.task),
            Ok(Task::Dmem { bytes: 4096, .. })
        ));
        let request = ["--socket", "/s", "--claim", "u", "--key", "gpu/share"];
        assert!(matches!(
            parse(&request).map(|options| options.task),
            Ok(Task::Limit(_))
        ));
        let task = [&request[..], &["--task", "interface"]].concat();
        assert!(matches!(
            parse(&task).map(|options| options.task),
            Ok(Task::Interface(_))
        ));
    }

    #[test]
    fn missing_or_unknown_arguments_are_errors() {
        for arguments in [
            &[][..],
            &["--region", "r"],
            &["--region", "r", "--bytes"],
            &["--region", "r", "--bytes", "-1"],
            &["--region", "r", "--bytes", "1", "--soft", "1"],
            &["--region", "r", "--bytes", "1", "--socket", "/s"],
            &["--region", "r", "--bytes", "1", "--task", "interface"],
            &[
                "--socket", "/s", "--claim", "u", "--key", "k", "--task", "other",
            ],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
