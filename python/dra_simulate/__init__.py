"""Simulated hosts: a machine description becomes sysfs, dev and proc trees and a library that implements NVML.

A recording of a host becomes the same. The agent loads this package by name: `dra_agent.agent.distributions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dra_simulate.builder import build, build_machine
from dra_simulate.profiles import profiles
from dra_simulate.recording import folder_name

if TYPE_CHECKING:
    from dra_agent.device_setup.sysfs_writer import SysfsWriter

__version__ = "0.1.0"
__all__ = ["__version__", "build", "build_machine", "driver_root", "folder_name", "profiles", "sysfs_writer"]


def driver_root(root: Path, path: Path) -> Path:
    """Return where the host at `root` has NVIDIA's driver root `path`; the first call installs the driver there."""
    from dra_simulate import driver_container

    return driver_container.provide(root, path)


def sysfs_writer(root: Path) -> SysfsWriter:
    """Return what reacts to writes to /sys of the host at `root`, which is simulated or from a recording."""
    from dra_simulate.recording import MARKER, RecordedKernel

    if (root / MARKER).is_file():
        return RecordedKernel(root)
    from dra_simulate.kernel import SimulatedKernel

    return SimulatedKernel(root)
