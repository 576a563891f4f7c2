"""The vendor set-ups that come with the agent, in the order in which one claim's are made.

What makes a device comes first, what is set on it after. Making a set-up touches neither the host nor the disk, so
that commands can ask which kinds there are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config
from dra_agent.agent.hook_server import MAX_CONCURRENCY
from dra_agent.agent.host_factory import is_simulated
from dra_agent.host import Host
from dra_agent.prepare.setup import DeviceSetup, Kind

if TYPE_CHECKING:
    from dra_agent.device_setup.sysfs_writer import SysfsWriter
    from dra_agent.inventory.amd.mode_changes import ModeChanges


def vendor_setups(config: Config, host: Host, mode_changes: ModeChanges | None = None) -> tuple[DeviceSetup, ...]:
    """Make every set-up for a host, with its state below the configuration's state directory.

    `mode_changes` hears which GPUs are being divided; None: nobody looks at them meanwhile.
    """
    from dra_agent.device_setup.amd import AmdPartitionSetup
    from dra_agent.device_setup.mig import MigSetup
    from dra_agent.device_setup.net import NicSetup
    from dra_agent.device_setup.timeslice import TimeSliceSetup
    from dra_agent.device_setup.vfio import VfioSetup
    from dra_agent.device_setup.vfio.nvml_guard import NvidiaLibrary

    kernel = _kernel(host)
    return (
        VfioSetup(
            host, kernel, config.state_dir, library=NvidiaLibrary(host.nvml_library, config.inventory.nvml_timeout)
        ),
        MigSetup(host, config.inventory.nvml_timeout),
        AmdPartitionSetup(host, kernel, config.state_dir, changes=mode_changes),
        _shares(config, host),
        TimeSliceSetup(_nvidia_smi(host), config.state_dir),
        NicSetup(host, config.state_dir, config.host_folder),
    )


def hook_tasks(setups: Iterable[DeviceSetup]) -> dict[str, Callable[[bytes], bool]]:
    """Give what the hooks of starting containers can ask for, by its name."""
    from dra_agent.device_setup.net import NicSetup
    from dra_agent.device_setup.net.mover import TASK
    from dra_agent.device_setup.shares import ShareSetup

    tasks: dict[str, Callable[[bytes], bool]] = {}
    for setup in setups:
        if isinstance(setup, ShareSetup):
            tasks[MAX_CONCURRENCY] = setup.limiter.apply
        elif isinstance(setup, NicSetup):
            tasks[TASK] = setup.mover.move
    return tasks


def _kernel(host: Host) -> SysfsWriter:
    """Give what takes writes to /sys: the kernel that runs, or the simulated host's."""
    if is_simulated(host):
        from dra_agent.simulate.kernel import SimulatedKernel

        return SimulatedKernel(host.sysfs.parent)
    from dra_agent.device_setup.sysfs_writer import RealSysfsWriter

    return RealSysfsWriter(host.sysfs)


def _shares(config: Config, host: Host) -> DeviceSetup:
    from dra_agent.device_setup.limits.driver_limit import DriverLimit
    from dra_agent.device_setup.limits.limiter import Limiter
    from dra_agent.device_setup.mps.compute_mode import ComputeMode
    from dra_agent.device_setup.mps.sharing import MpsSharing
    from dra_agent.device_setup.shares import ShareSetup

    timeout = config.inventory.nvml_timeout
    mps = MpsSharing(host, config.state_dir, ComputeMode(host.nvml_library, timeout))
    limiter = Limiter(host, config.state_dir, config.host_folder, DriverLimit(host.nvml_library, timeout))
    return ShareSetup(mps, limiter)


def known_setups() -> dict[Kind, DeviceSetup]:
    """Give every kind that there is, for who only reads what is asked for."""
    return {setup.kind: setup for setup in vendor_setups(Config(), Host())}


def _nvidia_smi(host: Host) -> Path | None:
    """Find nvidia-smi: the host's own, and never this machine's for a simulated one."""
    if host.nvidia_smi is not None or host.dev != Path("/dev"):
        return host.nvidia_smi
    found = shutil.which("nvidia-smi")
    return Path(found) if found else None
