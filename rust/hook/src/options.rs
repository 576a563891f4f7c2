//! What the hook is told by its arguments, which the agent writes into the claim's CDI spec.

use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct Options {
    /// The unified cgroup hierarchy.
    pub(crate) cgroups: PathBuf,
    pub(crate) proc: PathBuf,
    pub(crate) limit: Limit,
}

/// Who limits, and what.
#[derive(Debug)]
pub(crate) enum Limit {
    /// The kernel: one region of device memory.
    Dmem { region: String, bytes: u64 },
    /// The agent: a device, or share of one, of a claim that it knows.
    Agent {
        socket: PathBuf,
        claim: String,
        key: String,
    },
}

impl Options {
    /// Reads `--name value` pairs. An unknown one is an error: the limit could be in it.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut cgroups = PathBuf::from("/sys/fs/cgroup");
        let mut proc = PathBuf::from("/proc");
        let (mut region, mut bytes, mut socket, mut claim, mut key) =
            (None, None, None, None, None);
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
                _ => return Err(format!("argument {name} is not known")),
            }
        }
        let limit = match (region, bytes, socket, claim, key) {
            (Some(region), Some(bytes), None, None, None) => Limit::Dmem { region, bytes },
            (None, None, Some(socket), Some(claim), Some(key)) => {
                Limit::Agent { socket, claim, key }
            }
            _ => {
                return Err("needs --region and --bytes, or --socket, --claim and --key".to_owned());
            }
        };
        Ok(Self {
            cgroups,
            proc,
            limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, Options};

    fn read(arguments: &[&str]) -> Result<Options, String> {
        Options::read(arguments.iter().map(|text| (*text).to_owned()))
    }

    #[test]
    fn either_a_region_or_the_agent() {
        let options = read(&["--region", "drm/0000:03:00.0/vram0", "--bytes", "4096"]);
        assert!(matches!(
            options.map(|options| options.limit),
            Ok(Limit::Dmem { bytes: 4096, .. })
        ));
        let options = read(&["--socket", "/s", "--claim", "u", "--key", "gpu/share"]);
        assert!(matches!(
            options.map(|options| options.limit),
            Ok(Limit::Agent { .. })
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
        ] {
            assert!(read(arguments).is_err(), "{arguments:?}");
        }
    }
}
