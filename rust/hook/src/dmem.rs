//! The kernel's cgroup controller of device memory (Documentation/admin-guide/cgroup-v2.rst, "DMEM").

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

const CONTROLLER: &str = "dmem";

/// Limits the memory of a cgroup in one region, and verifies the limit that the kernel has set.
pub(crate) fn limit(root: &Path, cgroup: &str, region: &str, bytes: u64) -> Result<(), String> {
    enable(root, cgroup)?;
    let file = root.join(cgroup).join("dmem.max");
    // The kernel accepts one region per write.
    write(&file, &format!("{region} {bytes}\n"))?;
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    match limit_of(&text, region) {
        Some(set) if set <= bytes => Ok(()),
        Some(set) => Err(format!(
            "{}: {region} is limited to {set} bytes, not {bytes}",
            file.display()
        )),
        None => Err(format!("{}: {region} is not limited", file.display())),
    }
}

/// Enables the controller in every cgroup above the container's.
fn enable(root: &Path, cgroup: &str) -> Result<(), String> {
    let mut dir = root.to_path_buf();
    for part in cgroup.split('/') {
        let file = dir.join("cgroup.subtree_control");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        if !text.split_whitespace().any(|name| name == CONTROLLER) {
            write(&file, &format!("+{CONTROLLER}\n"))?;
        }
        dir.push(part);
    }
    Ok(())
}

/// Writes with one write(2), because the kernel parses each call separately. Never creates the file.
fn write(file: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open = File::options().write(true).open(file).map_err(failed)?;
    let written = open.write(text.as_bytes()).map_err(failed)?;
    if written == text.len() {
        Ok(())
    } else {
        Err(format!(
            "{}: only {written} bytes were written",
            file.display()
        ))
    }
}

fn limit_of(text: &str, region: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, amount) = line.split_once(' ')?;
        // "max" means that there is no limit.
        (name == region).then(|| amount.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::limit_of;

    #[test]
    fn limits_are_found_by_region() {
        let text = "drm/0000:03:00.0/vram0 4096\ndrm/0000:83:00.0/vram0 max\n";
        assert_eq!(limit_of(text, "drm/0000:03:00.0/vram0"), Some(4096));
        assert_eq!(limit_of(text, "drm/0000:83:00.0/vram0"), None);
        assert_eq!(limit_of(text, "drm/0000:03:00.0/vram"), None);
    }
}
