"""Where a host's file systems are: every path that the agent reads of a host starts at one of these roots.

A simulated host is the same value with other roots, so nothing else in the agent knows that it is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """The roots of one host, real or simulated."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    nvml_library: Path | None = None
    """The NVML library to load; None leaves the choice to the dynamic loader."""
    net: Path | None = None
    """The host's /proc/net, where the agent has a network namespace of its own; None: the one below `proc`."""
    nvidia_smi: Path | None = None
    """Path of nvidia-smi; None: searched in PATH, or missing on a simulated host."""
    state: Path | None = None
    """Where agents of the host record their changes to its hardware; None: they have made none."""

    def dev_path(self, node: str) -> Path:
        """Where the device node that containers know as `node` ("/dev/nvidia0") lies on this host."""
        return self.dev / Path(node).relative_to("/dev")
