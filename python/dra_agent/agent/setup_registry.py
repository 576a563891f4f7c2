"""The registry of set-ups, in the order in which they run for a claim.

Set-ups that create a device come first, then those that configure it. Those of vendors are found by name:
`device_setup.vendor`. A constructor touches neither host nor disk, so that commands can list the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config
from dra_agent.agent.distributions import simulation
from dra_agent.driver_root import AUTO, OPERATOR_ROOT, DriverRoot
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.prepare.setup import DaemonOwner, DeviceSetup, HookHandler, Kind
from dra_agent.presence import exists, may_exist

if TYPE_CHECKING:
    from dra_agent.cdi.edits import EditProviders
    from dra_agent.device_setup.notice import NoticeDirectory
    from dra_agent.device_setup.sysfs_writer import SysfsWriter
    from dra_agent.inventory.mode_changes import ModeChanges


SIMULATED = "simulated"
"""Its directory in the state directory: a simulated host lasts, so that it can be changed while the agent runs."""


def agent_host(config: Config) -> Host:
    """Return the host that the agent runs on; a simulated one is in the state directory.

    Raises:
        RetryableError: The simulated host cannot be written.
        UsageError: The distribution for simulated hosts is not installed.
    """
    if config.simulate is None:
        return Host(
            sysfs=config.sysfs_root,
            dev=config.dev_root,
            net=config.net_root,
            state=config.state_dir,
            driver_root=driver_root(config),
        )
    root = _simulated_folder(config.state_dir, config.simulate)
    try:
        return replace(simulated_host(config, root), state=config.state_dir)
    except OSError as error:
        raise RetryableError(
            f"the simulated host cannot be built: {error.strerror}",
            where=str(error.filename or root),
            hint="make room there, or choose another directory with --state-dir",
        ) from error


def driver_root(config: Config) -> DriverRoot | None:
    """Return the root of NVIDIA's driver that is configured; None: the driver is installed on the host itself."""
    setting, mount = config.nvidia_driver_root, config.nvidia_driver_root_ctr_path
    if setting == AUTO:
        return DriverRoot(OPERATOR_ROOT, mount or OPERATOR_ROOT, required=False)
    path = Path(setting)
    if path == Path("/") and mount is None:
        return None
    return DriverRoot(path, mount or path)


def simulated_host(config: Config, root: Path) -> Host:
    """Build the simulated host, with NVIDIA's driver below a separate root if one is configured."""
    assert config.simulate is not None
    host = simulation().build(config.simulate, root)
    configured = driver_root(config)
    if configured is None:
        return host
    mount = simulation().driver_root(root, configured.path)
    return replace(host, driver_root=DriverRoot(mount, mount, configured.required))


def is_simulated(host: Host) -> bool:
    """Return True for a simulated host, by the marker that `dra_simulate.builder` writes next to its /sys."""
    return (host.sysfs.parent / "simulated.json").is_file()


def is_recorded(host: Host) -> bool:
    """Return True for a host from a recording, by the marker that `dra_simulate.recording` writes next to its /sys."""
    return (host.sysfs.parent / "recording.json").is_file()


def has_simulated(config: Config) -> bool:
    """Return whether an agent has used the simulated host on this state directory, or this user cannot see whether."""
    return config.simulate is not None and may_exist(_simulated_folder(config.state_dir, config.simulate) / "sys")


def _simulated_folder(state_dir: Path, profile: str) -> Path:
    return state_dir / SIMULATED / simulation().folder_name(profile)


@contextmanager
def command_host(config: Config) -> Iterator[Host]:
    """Return the host for a command: the agent's simulated host if one exists, else a temporary one."""
    if config.simulate is None:
        yield agent_host(config)
        return
    if exists(_simulated_folder(config.state_dir, config.simulate) / "sys"):
        yield agent_host(config)
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="dra-agent-") as directory:
        yield simulated_host(config, Path(directory))


def vendor_setups(
    config: Config,
    host: Host,
    mode_changes: ModeChanges | None = None,
    notices: NoticeDirectory | None = None,
) -> tuple[DeviceSetup, ...]:
    """Make every set-up for a host, with its state below the configuration's state directory.

    `mode_changes` is notified of GPUs that are being partitioned; None if no scan runs concurrently. `notices` has the
    current notice; None for a process that prepares no claims.
    """
    from dra_agent.device_setup.net import NicSetup
    from dra_agent.device_setup.notice import NoticeDirectory, NoticeSetup
    from dra_agent.device_setup.vendor import SetupContext, all_vendors
    from dra_agent.device_setup.vfio import VfioSetup

    context = SetupContext(
        host=host,
        kernel=_kernel(host),
        state_dir=config.state_dir,
        library_timeout_s=config.inventory.nvml_timeout,
        mode_changes=mode_changes,
    )
    vendors = all_vendors(context)
    libraries = [library for vendor in vendors for library in vendor.libraries]
    return (
        VfioSetup(host, context.kernel, config.state_dir, libraries=libraries),
        *(setup for vendor in vendors for setup in vendor.creating),
        _shares(config, host),
        *(setup for vendor in vendors for setup in vendor.configuring),
        NicSetup(host, config.state_dir, config.host_folder, kernel=context.kernel),
        NoticeSetup(notices or NoticeDirectory(config.notice_dir)),
    )


def vendor_edits(host: Host) -> EditProviders:
    """Return the edits of containers of every vendor, with the tools that the host has."""
    from dra_agent.cdi.edits import EditProviders
    from dra_agent.cdi.edits.registry import host_program

    return EditProviders(host, program_finder=partial(host_program, host))


def daemon_checks(setups: Iterable[DeviceSetup]) -> list[Callable[[], dict[str, str]]]:
    """Return a function for each set-up with daemons: it restarts those that ended, and returns failures by device."""
    return [setup.supervise for setup in setups if isinstance(setup, DaemonOwner)]


def hook_tasks(setups: Iterable[DeviceSetup]) -> dict[str, Callable[[bytes], bool]]:
    """Return the handlers of container hooks by task name."""
    tasks: dict[str, Callable[[bytes], bool]] = {}
    for setup in setups:
        if isinstance(setup, HookHandler):
            tasks.update(setup.hook_tasks())
    return tasks


def _kernel(host: Host) -> SysfsWriter:
    """Return the writer of /sys: of the running kernel, or of the simulated host."""
    if is_recorded(host) or is_simulated(host):
        return simulation("a simulated host").sysfs_writer(host.sysfs.parent)
    from dra_agent.device_setup.sysfs_writer import RealSysfsWriter

    return RealSysfsWriter(host.sysfs)


def _shares(config: Config, host: Host) -> DeviceSetup:
    from dra_agent.device_setup.mps.sharing import ComputeMode, MpsSharing
    from dra_agent.device_setup.shares import ShareSetup
    from dra_agent.device_setup.shares.limiter import DriverLimit, Limiter

    timeout = config.inventory.nvml_timeout
    mps = MpsSharing(host, config.state_dir, ComputeMode(host.nvml, timeout))
    limiter = Limiter(host, config.state_dir, config.host_folder, DriverLimit(host.nvml, timeout))
    return ShareSetup(mps, limiter)


def known_setups() -> dict[Kind, DeviceSetup]:
    """Return every kind of configuration, to read requests only."""
    return {setup.kind: setup for setup in vendor_setups(Config(), Host())}
