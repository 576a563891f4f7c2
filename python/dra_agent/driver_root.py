"""The root of NVIDIA's driver: its libraries, programs and device nodes, where they are not those of the host.

The GPU Operator's driver container mounts its own root at /run/nvidia/driver of the host, after it has loaded the
kernel modules, and unmounts it when it stops (gpu-driver-container, `_mount_rootfs` and `_unmount_rootfs`). So a root
may be empty, appear late, and be replaced while the agent runs: everything is looked up when it is used.

Links are followed as a process would whose root directory this is: an absolute link never leads to a file of the host,
or of the agent's own container.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_agent.errors import RetryableError

AUTO = "auto"
"""The setting that uses OPERATOR_ROOT while a driver is there, and otherwise the host's own files."""
OPERATOR_ROOT = Path("/run/nvidia/driver")
"""Default of the GPU Operator (hostPaths.driverInstallDir; cmd/nvidia-validator/main.go, defaultDriverInstallDir)."""
LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRS = (
    "",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
    "glibc/lib",
)
"""Where NVIDIA's container toolkit looks (internal/lookup/library.go), in its order; a superset of the directories of
NVIDIA's DRA driver (cmd/gpu-kubelet-plugin/root.go)."""
PROGRAM_DIRS = ("opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")
"""As NVIDIA's DRA driver (cmd/gpu-kubelet-plugin/root.go, getNvidiaSMIPath)."""
SETTING = "nvidia_driver_root"
_MAX_LINKS = 40
"""As the kernel (include/linux/namei.h, MAXSYMLINKS)."""
_READY_MARKER = "validations/.driver-ctr-ready"
"""Next to the root. The driver container creates it when nvidia-smi works."""
_ELF_64 = b"\x7fELF\x02"

Identity = tuple[str, int, int, int]
"""Path, device, inode and time of modification: another one is another library."""


class DriverMissingError(RetryableError):
    """There is no driver at its root: it is not installed yet, it was removed, or the root is wrong."""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """One root. Files below it are read on demand."""

    path: Path
    """On the host: CDI specs name files by it."""
    mount: Path
    """Where the agent sees it: the same path, unless its container mounts it elsewhere."""
    required: bool = True
    """False: files that are missing below it are looked up as on a host without a root (`auto`)."""

    def library(self) -> Path | None:
        """Return the NVML library; None: the dynamic loader finds it. Raises DriverMissingError."""
        found, rejected = self._find(LIBRARY, LIBRARY_DIRS, _library_fault)
        if found is not None:
            return found
        if not self.required and not rejected:
            return None
        raise self._missing(rejected)

    def identity(self) -> Identity | None:
        """Return the identity of the library's file; None without a library."""
        try:
            path = self.library()
            if path is None:
                return None
            status = path.stat()
        except (OSError, DriverMissingError):
            return None
        return str(path), status.st_dev, status.st_ino, status.st_mtime_ns

    def program(self, name: str) -> Path | None:
        """Return a program of the driver; None if there is none below the root."""
        return self._find(name, PROGRAM_DIRS, _program_fault)[0]

    def dev(self) -> Path | None:
        """Return the driver's own /dev as the agent sees it; None if its device nodes are in the host's /dev.

        Every root that is mounted with its /dev has one (gpu-operator, internal/driverroot: GetDevRoot); only one with
        NVIDIA's control node is used.
        """
        dev = self.mount / "dev"
        return dev if os.path.lexists(dev / "nvidiactl") else None

    @property
    def ready_marker(self) -> Path:
        """The file by which the GPU Operator's driver container announces that the driver works."""
        return self.mount.parent / _READY_MARKER

    def on_host(self, path: str) -> str:
        """Return the path on the host of a path that the agent sees; a path that is not below the root is the same."""
        return _moved(path, self.mount, self.path)

    def as_seen(self, path: str) -> str:
        """Return where the agent sees a path of the host; a path that is not below the root is the same."""
        return _moved(path, self.path, self.mount)

    def _find(self, name: str, folders: tuple[str, ...], fault: Callable[[Path], str]) -> tuple[Path | None, list[str]]:
        """Return the first usable file, resolved, and why others are not."""
        rejected: list[str] = []
        for folder in folders:
            seen = self.mount / folder / name
            try:
                path = self._resolve(f"{folder}/{name}")
                reason = fault(path)
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    if not seen.is_symlink():
                        continue
                    reason = f"a link to {seen.readlink()}, which is not below the root"
            if not reason:
                return path, rejected
            rejected.append(f"{self.on_host(str(seen))} is {reason}")
        return None, rejected

    def _resolve(self, relative: str) -> Path:
        """Follow links within the root; raises OSError."""
        done: list[str] = []
        pending = relative.split("/")[::-1]
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            try:
                target = str(self.mount.joinpath(*done, part).readlink())
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, "in a loop of links")
            if target.startswith("/"):
                done = []
            pending += target.split("/")[::-1]
        return self.mount.joinpath(*done)

    def _missing(self, rejected: list[str]) -> DriverMissingError:
        where = str(self.path)
        if rejected:
            message, hint = (
                f"no library of NVIDIA's driver can be used: {'; '.join(rejected)}",
                "repair the driver there",
            )
        elif not _has_entries(self.mount):
            message = f"NVIDIA's driver is missing (yet): {LIBRARY} is expected below this directory, which is empty"
            hint = "wait until the driver container has started (GPU Operator: pods of nvidia-driver-daemonset)"
        else:
            message = f"NVIDIA's driver is missing: no {LIBRARY} in the library directories below it"
            hint = "wait until the driver is installed"
        if self.mount != self.path:
            message += f" (the agent sees it at {self.mount})"
        return DriverMissingError(
            message, where=where, hint=f'{hint}, or correct {SETTING} = "{self.path}" (chart: nvidia.driverRoot)'
        )


@dataclass(frozen=True, slots=True)
class DriverTool:
    """One program of the driver."""

    path: Path
    library: Path | None = None
    """The NVML library next to which the driver's other libraries are; None: the dynamic loader finds them."""

    def environment(self) -> dict[str, str]:
        """Return variables for the program: nvidia-smi loads NVML by its name, through the dynamic loader.

        NVIDIA's DRA driver preloads the library for the same reason (hack/kubelet-plugin-prestart.sh). A search path
        also serves the MPS server, which loads CUDA; that is not verified with a real driver.
        """
        if self.library is None:
            return {}
        paths = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        programs = [str(self.path.parent), *filter(None, [os.environ.get("PATH")])]
        return {"LD_LIBRARY_PATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)}


def _library_fault(path: Path) -> str:
    """Return why a file is not a library of this machine; "" if it is one."""
    if not stat.S_ISREG(path.stat().st_mode):
        return "not a file"
    with path.open("rb") as file:
        header = file.read(len(_ELF_64))
    # Some distributions have 32-bit libraries in directories of this list.
    return "" if header == _ELF_64 or sys.maxsize < 2**32 else "not a 64-bit library"


def _program_fault(path: Path) -> str:
    return "" if stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK) else "not a program"


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def _moved(path: str, source: Path, target: Path) -> str:
    if source == target or not Path(path).is_relative_to(source):
        return path
    return str(target / Path(path).relative_to(source))
