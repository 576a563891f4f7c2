//! What the hook is told by its arguments, which the agent writes into the claim's CDI spec.

use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct Options {
    /// The unified cgroup hierarchy.
    pub(crate) cgroups: PathBuf,
    pub(crate) proc: PathBuf,
    pub(crate) task: Task,
}

/// What is to be done for the container, and by whom.
#[derive(Debug)]
pub(crate) enum Task {
    /// The kernel limits one region of device memory.
    Dmem { region: String, bytes: u64 },
    /// The agent limits the container's memory of a device.
    Limit(Asked),
    /// The agent moves a network interface into the container's network.
    Interface(Asked),
}

/// A device, or share of one, of a claim that the agent knows.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) socket: PathBuf,
    pub(crate) claim: String,
    pub(crate) key: String,
}

impl Task {
    /// What the container lacks where this fails.
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
    /// Reads `--name value` pairs. An unknown one is an error: the limit could be in it.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut cgroups = PathBuf::from("/sys/fs/cgroup");
        let mut proc = PathBuf::from("/proc");
        let (mut region, mut bytes, mut socket, mut claim, mut key, mut task) =
            (None, None, None, None, None, None);
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("argument {name} has no value"))?;
            match name.as_str() {
                "--cgroups" => cgroups = value.into(),
                "--proc" => proc = value.into(),
                "--region" => region = Some(value),
                "--bytes" => {
                    let amount = value
                        .parse()
                        .map_err(|_| format!("--bytes {value:?} is no number"))?;
                    bytes = Some(amount);
                }
                "--socket" => socket = Some(PathBuf::from(value)),
                "--claim" => claim = Some(value),
                "--key" => key = Some(value),
                "--task" => task = Some(value),
                _ => return Err(format!("argument {name} is not known")),
            }
        }
        let task = match (region, bytes, socket, claim, key) {
            (Some(region), Some(bytes), None, None, None) if task.is_none() => {
                Task::Dmem { region, bytes }
            }
            (None, None, Some(socket), Some(claim), Some(key)) => {
                let asked = Asked { socket, claim, key };
                // Without a task it is a limit, as in specs from before there was another one.
                match task.as_deref() {
                    None => Task::Limit(asked),
                    Some("interface") => Task::Interface(asked),
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

#[cfg(test)]
mod tests {
    use super::{Options, Task};

    fn read(arguments: &[&str]) -> Result<Options, String> {
        Options::read(arguments.iter().map(|text| (*text).to_owned()))
    }

    #[test]
    fn either_a_region_or_the_agent() {
        let options = read(&["--region", "drm/0000:03:00.0/vram0", "--bytes", "4096"]);
        assert!(matches!(
            options.map(|options| options.task),
            Ok(Task::Dmem { bytes: 4096, .. })
        ));
        let asked = ["--socket", "/s", "--claim", "u", "--key", "gpu/share"];
        assert!(matches!(
            read(&asked).map(|options| options.task),
            Ok(Task::Limit(_))
        ));
        let task = [&asked[..], &["--task", "interface"]].concat();
        assert!(matches!(
            read(&task).map(|options| options.task),
            Ok(Task::Interface(_))
        ));
    }

    #[test]
    fn what_is_missing_or_unknown_is_an_error() {
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
            assert!(read(arguments).is_err(), "{arguments:?}");
        }
    }
}
