"""The root of a driver container on a simulated host: it appears, is replaced, and disappears, as NVIDIA's does.

Layout and order follow gpu-driver-container (`_load_driver`, `_mount_rootfs`, `_shutdown`) and of the GPU
Operator's DaemonSet (assets/state-driver/0500_daemonset.yaml: startup probe and preStop of the file
`validations/.driver-ctr-ready`).
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import msgspec

from dra_agent.driver_root import LIBRARY, OPERATOR_ROOT, DriverRoot
from dra_agent.errors import UsageError
from dra_simulate import builder, mps, nvidia_smi, nvml
from dra_simulate.machine import Machine
from dra_simulate.profiles import load_profile
from dra_simulate.tree import replace_file

_RECORD = "driver-root.json"
LIBRARY_DIR = "usr/lib/x86_64-linux-gnu"
PROGRAM_DIR = "usr/bin"


class _Record(msgspec.Struct, frozen=True):
    path: str


def provide(root: Path, path: Path) -> Path:
    """Return where a simulated host has the driver root `path`. The first call installs the driver there."""
    mount = _below(root, path)
    record = root / _RECORD
    if not record.exists():
        mount.mkdir(parents=True, exist_ok=True)
        install(root, path)
    return mount


def install(
    root: Path, path: Path = OPERATOR_ROOT, *, version: str | None = None, own_dev: bool = False, ready: bool = True
) -> None:
    """Put the driver's files below its root. Files that are there are replaced, by others of the same names.

    `version`: of the library, by default that of the kernel module. `own_dev`: the device nodes are below the root,
    too. `ready`: the container has announced that the driver works.
    """
    mount = _below(root, path)
    version = version or _module_version(root)
    libraries, programs = mount / LIBRARY_DIR, mount / PROGRAM_DIR
    libraries.mkdir(parents=True, exist_ok=True)
    programs.mkdir(parents=True, exist_ok=True)
    replace_file(libraries / f"libnvidia-ml.so.{version}", (root / "lib" / LIBRARY).read_bytes())
    _link(libraries / LIBRARY, f"libnvidia-ml.so.{version}")
    # The fake reads its state next to the library, through this link.
    _link(libraries / nvml.STATE, str(root.absolute() / "lib" / nvml.STATE))
    tool = root / nvidia_smi.TOOL
    if tool.exists():
        replace_file(programs / tool.name, tool.read_bytes())
        (programs / tool.name).chmod(0o755)
    mps.install(programs)
    if own_dev:
        _copy_nodes(root / "dev", mount / "dev")
    _set_ready(root, path, ready=ready)
    replace_file(root / _RECORD, msgspec.json.encode(_Record(str(path))))


def remove(root: Path, path: Path = OPERATOR_ROOT) -> None:
    """Unmount the driver's root; its mount point stays, as the container leaves it."""
    mount = _below(root, path)
    _set_ready(root, path, ready=False)
    if mount.is_dir():
        for entry in mount.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    mount.mkdir(parents=True, exist_ok=True)
    replace_file(root / _RECORD, msgspec.json.encode(_Record(str(path))))


def announce_stop(root: Path, path: Path = OPERATOR_ROOT) -> None:
    """Remove the marker, as the container does before it unloads the kernel modules."""
    _set_ready(root, path, ready=False)


def load_modules(root: Path, *, loaded: bool, machine: Machine | None = None) -> None:
    """Load or unload NVIDIA's kernel modules: without them, GPUs have no driver and there are no device nodes.

    Raises UsageError if `root` is not a simulated host.
    """
    state = builder.load_state(root)
    if state is None:
        raise UsageError("not a simulated host", where=str(root))
    machine = machine or load_profile(state.profile)
    gpus = {one.address for one in machine.functions() if one.driver == "nvidia"}
    drivers = {address: driver for address, driver in state.drivers.items() if address not in gpus}
    if not loaded:
        drivers |= dict.fromkeys(gpus, "")
    with nvml.locked(root / "lib"):
        changed = msgspec.structs.replace(state, drivers=drivers, driver_unloaded=not loaded)
        builder.apply(machine, changed, root)


def _below(root: Path, path: Path) -> Path:
    return root.absolute() / path.relative_to("/")


def _module_version(root: Path) -> str:
    driver = nvml.read(root / "lib").driver
    if driver is None:
        raise UsageError("this simulated host has no NVIDIA driver", where=str(root))
    return driver.version


def _link(path: Path, target: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.rename(path)


def _copy_nodes(source: Path, target: Path) -> None:
    """Make the nodes of the driver again; where that is not permitted, regular files, as elsewhere in the host."""
    for node in sorted(source.rglob("nvidia*")):
        status, copy = node.lstat(), target / node.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.exists() or stat.S_ISDIR(status.st_mode):
            continue
        if stat.S_ISCHR(status.st_mode):
            os.mknod(copy, status.st_mode, status.st_rdev)
        else:
            copy.touch()


def _set_ready(root: Path, path: Path, *, ready: bool) -> None:
    marker = DriverRoot(path, _below(root, path)).ready_marker
    if ready:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    else:
        marker.unlink(missing_ok=True)
