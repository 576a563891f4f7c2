"""Where a host's file systems are: every path that the agent reads of a host starts at one of these roots.

A simulated host is the same value with other roots, so nothing else in the agent knows that it is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_agent.driver_root import DriverMissingError, DriverRoot, DriverTool
from dra_agent.path_search import find_program


@dataclass(frozen=True, slots=True)
class Host:
    """The roots of one host, real or simulated."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    nvml_library: Path | None = None
    """The NVML library to load; None leaves the choice to the driver root, or to the dynamic loader."""
    driver_root: DriverRoot | None = None
    """Where NVIDIA's driver is; None: installed on the host itself."""
    net: Path | None = None
    """The host's /proc/net, where the agent has its own network namespace; None: the one below `proc`."""
    nvidia_smi: Path | None = None
    """Path of nvidia-smi; None: searched in PATH, or missing on a simulated host."""
    state: Path | None = None
    """Where agents of the host record their changes to its hardware; None: they have made none."""

    def boot_id(self) -> str:
        """Return the ID of the host's current boot, or "unknown"."""
        # A simulated host is of the same boot as this machine.
        for proc in (self.proc, Path("/proc")):
            try:
                return (proc / "sys/kernel/random/boot_id").read_text().strip()
            except OSError:
                continue
        return "unknown"

    @property
    def nvml(self) -> Path | DriverRoot | None:
        """Where NVML is loaded from: below the driver root, from a file, or as the dynamic loader finds it."""
        return self.driver_root or self.nvml_library

    def dev_path(self, node: str) -> Path:
        """Return the path on this host of the device node that containers see as `node` ("/dev/nvidia0")."""
        name = node.removeprefix("/dev/")
        # Joining text is faster than `relative_to`, and a scan describes hundreds of nodes.
        plain = name != node and not name.startswith("/")
        return self.dev / name if plain else self.dev / Path(node).relative_to("/dev")

    def driver_dev(self) -> Path:
        """Return the directory with the device nodes of NVIDIA's driver, which may have its own /dev."""
        own = self.driver_root.dev() if self.driver_root is not None else None
        return self.dev if own is None else own

    def driver_node(self, node: str) -> Path:
        """Where the agent sees a device node of NVIDIA's driver ("/dev/nvidiactl")."""
        return self.driver_dev() / Path(node).relative_to("/dev")

    def driver_program(self, name: str) -> Path | None:
        """Find a program of NVIDIA's driver: never elsewhere if it has a root, nor this machine's on a simulated host.

        On a simulated host without a root, only the host's own nvidia-smi is found.
        """
        if self.driver_root is not None:
            found = self.driver_root.program(name)
            if found is not None or self.driver_root.required:
                return found
        if self.dev != Path("/dev") or (name == "nvidia-smi" and self.nvidia_smi is not None):
            return self.nvidia_smi if name == "nvidia-smi" else None
        return find_program(name)

    def driver_tool(self, name: str) -> DriverTool | None:
        """Find a program of NVIDIA's driver, with the libraries of the same driver; None without it."""
        path, root = self.driver_program(name), self.driver_root
        if path is None or root is None or not path.is_relative_to(root.mount):
            return None if path is None else DriverTool(path)
        try:
            return DriverTool(path, root.library())
        except DriverMissingError:
            return None
