//! The cgroup of a container's first process.

use std::path::Path;

/// The maximum length of a path, which is part of a line of the protocol with the agent.
const MAX_PATH_BYTES: usize = 4096;

/// Returns the path below the unified hierarchy, without a leading slash: "kubepods.slice/.../cri-ID.scope".
pub(crate) fn of_process(proc: &Path, pid: u32) -> Result<String, String> {
    let file = proc.join(pid.to_string()).join("cgroup");
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Lines are `ID:CONTROLLERS:PATH`; the line of the unified hierarchy starts with `0::` (cgroups(7)).
fn parse(text: &str) -> Result<String, String> {
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or("the process is in no cgroup of the unified hierarchy (version 2)")?;
    // A limit on the root cgroup or on a path outside the container's cgroup would affect other containers.
    if path.is_empty() {
        return Err("the container has no separate cgroup".to_owned());
    }
    let invalid = |part: &str| part.is_empty() || part == "." || part == "..";
    if path.len() > MAX_PATH_BYTES
        || path.split('/').any(invalid)
        || path.contains(char::is_control)
    {
        return Err(format!("{path:?} is not a path of a cgroup"));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_unified_hierarchy_counts() {
        let text = "12:memory:/kubepods/a\n1:name=systemd:/x\n0::/kubepods.slice/cri-1.scope\n";
        assert_eq!(parse(text).as_deref(), Ok("kubepods.slice/cri-1.scope"));
    }

    #[test]
    fn a_path_that_is_not_the_containers_own_is_refused() {
        for text in [
            "",
            "0::/\n",
            "3:memory:/a\n",
            "0::/../outside\n",
            "0::/a/../b\n",
            "0::/a/./b\n",
            "0::/a//b\n",
            "0::/a\tb\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let long = |length: usize| parse(&format!("0::/{}\n", "a".repeat(length)));
        assert_eq!(long(4096).map(|path| path.len()), Ok(4096));
        for length in [4097, 4098] {
            assert!(long(length).is_err(), "{length} bytes");
        }
    }
}
