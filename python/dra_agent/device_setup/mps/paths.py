"""Directories of the control daemon of one GPU for pipes, logs and shared memory, and their mounts in containers."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.model import ContainerEdits, Mount
from dra_agent.command import HostCommand
from dra_agent.device_setup.mps import paths
from dra_agent.errors import PermanentError, RetryableError

PIPES_IN_CONTAINER = "/tmp/nvidia-mps"  # noqa: S108 - the default of CUDA
SHARED_MEMORY = "dra-agent"
"""The agent's directory in /dev/shm."""
_RM = Path("/bin/rm")
_REMOVAL_TIMEOUT_S = 5.0
_FOREIGN_ERRNOS = (errno.EPERM, errno.ENOTDIR, errno.ELOOP)
_MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "rbind", "rprivate")
_MAX_SOCKET_PATH_BYTES = 107
"""Maximum bytes of a socket path (unix(7)); the daemon creates "control_privileged" among its pipes."""
_LONGEST_PIPE_NAME = "control_privileged"


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """The directories of the daemon of one GPU."""

    folder: Path
    """The GPU's directory below the state directory."""
    shm: Path
    """Mounted as /dev/shm for the daemon and its clients: they exchange memory there."""

    @classmethod
    def of(cls, state_dir: Path, dev: Path, device: str) -> MpsPaths:
        """Return the paths for a device; its name is a DNS label. PermanentError if a socket path would be too long."""
        folder = state_dir.absolute() / "mps" / device
        if len(str(folder / "pipe" / _LONGEST_PIPE_NAME).encode()) > _MAX_SOCKET_PATH_BYTES:
            raise PermanentError(
                f"the paths of the MPS pipes would be longer than {_MAX_SOCKET_PATH_BYTES} bytes",
                where=str(folder),
                hint="choose a shorter --state-dir",
            )
        # In memory if the host has a directory for that: shared memory must not be written to a disk.
        memory = dev.absolute() / "shm"
        return cls(folder, (memory / SHARED_MEMORY if memory.is_dir() else folder / "memory") / device)

    @property
    def record(self) -> Path:
        """File that records the process of the daemon; not mounted into containers."""
        return self.folder / "daemon.json"

    @property
    def pipe(self) -> Path:
        """The directory of the daemon's pipes."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """The directory of the daemon's logs."""
        return self.folder / "log"

    def make(self) -> None:
        """Create the directories; RetryableError if the disk cannot be written, or another user owns a directory."""
        # Clients, and the server for them, run as the users of containers; the umask is the agent's.
        state = (self.folder.parent.name, 0o711), (self.folder.name, 0o711)
        try:
            base = self.folder.parent.parent
            base.mkdir(parents=True, exist_ok=True)
            paths.make(base, *state, ("log", 0o700))
            paths.make(base, *state, ("pipe", 0o755))
            # Containers and the daemon get it as a mount: no other user of the host passes its parent.
            shm = (self.shm.parent.name, 0o700), (self.shm.name, 0o1777)
            if self.shm.is_relative_to(self.folder):
                paths.make(base, *state, *shm)
            else:
                paths.make(self.shm.parent.parent, *shm)
        except OSError as error:
            hint = "remove it, or have its owner do so" if error.errno in _FOREIGN_ERRNOS else "check its disk"
            raise RetryableError(
                f"cannot be made: {error.strerror}", where=str(error.filename or self.folder), hint=hint
            ) from error

    def clear(self) -> None:
        """Remove what earlier shares left, before the first one starts; RetryableError if it is still there.

        A release removes it too, unless the agent was killed meanwhile or the state file was lost.
        """
        self.remove()
        for folder in (self.pipe, self.shm):
            if os.path.lexists(folder):
                raise RetryableError(
                    "files of an earlier share cannot be removed",
                    where=str(folder),
                    hint="check its disk, or remove it",
                )

    def bound_logs(self) -> None:
        """Cut every log of more than MAX_LOG_BYTES, which clients can fill; its end is kept in a file NAME.old.

        The daemon has its logs open: a log is emptied in place. A log that cannot be read stays for the next call.
        """
        with suppress(OSError):
            for log in self.log.glob("*.log"):
                with suppress(OSError):
                    paths.cut(log)

    def remove(self) -> None:
        """Remove everything except the logs, which users may need.

        The files are moved away when this returns. A container can have left more files, and deeper directories, than
        can be removed at once: the next call removes the rest after a few seconds.
        """
        for folder in (self.pipe, self.shm):
            with suppress(OSError):
                paths.remove(folder.parent, folder.name)
            remaining = [str(path) for path in paths.set_aside(folder.parent, folder.name)]
            if remaining:
                # A separate process: the agent keeps no state for a million files, or a thousand levels.
                with suppress(RetryableError):
                    HostCommand(_RM, _REMOVAL_TIMEOUT_S).run(["-rf", "--one-file-system", "--", *remaining])
        if self.shm.is_relative_to(self.folder):
            with suppress(OSError):
                self.shm.parent.rmdir()

    def edits(self, memory_mib: int, percentage: int | None) -> ContainerEdits:
        """Return the container edits for a client with these limits.

        They apply to each process of the container, and the daemon enforces only its own defaults.
        """
        env = [
            f"CUDA_MPS_PIPE_DIRECTORY={PIPES_IN_CONTAINER}",
            # Device 0 of those visible to the container; the value has the unit M or G.
            f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={memory_mib}M",
        ]
        if percentage is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}")
        mounts = (
            Mount(str(self.pipe), PIPES_IN_CONTAINER, _MOUNT_OPTIONS),
            Mount(str(self.shm), "/dev/shm", (*_MOUNT_OPTIONS, "noexec")),  # noqa: S108
        )
        return ContainerEdits(env=tuple(env), mounts=mounts)


MAX_LOG_BYTES = 16 << 20
"""Bytes of one log of a daemon, which is checked with the daemon."""
_MAX_ASIDE = 100
"""Directories of one name that wait to be removed."""
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make(base: Path, *steps: tuple[str, int]) -> None:
    """Create nested directories in `base`, each a name and a mode, regardless of the umask.

    Raises OSError: EPERM if another user than the agent's owns a directory; ENOTDIR, ELOOP if it is not a directory.
    """
    at = base
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode in steps:
            at = at / name
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=handle)
            try:
                inner = os.open(name, _OPEN_FLAGS, dir_fd=handle)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(at)) from error
            os.close(handle)
            handle = inner
            status = os.fstat(handle)
            if status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"belongs to user {status.st_uid}, and not to the agent", str(at))
            if status.st_mode & 0o7777 != mode:
                os.fchmod(handle, mode)
    finally:
        os.close(handle)


def cut(log: Path) -> None:
    """Empty a log of more than MAX_LOG_BYTES on disk, and keep its end. Raises OSError; links are not followed."""
    handle = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        # By blocks: a writer that does not append leaves a hole before what it writes next.
        if not stat.S_ISREG(status.st_mode) or min(status.st_size, status.st_blocks * 512) <= MAX_LOG_BYTES:
            return
        end = os.pread(handle, MAX_LOG_BYTES // 2, max(0, status.st_size - MAX_LOG_BYTES // 2))
        atomic_file.write(log.with_name(f"{log.name}.old"), end)
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def remove(base: Path, *steps: str) -> Path | None:
    """Rename the last of these directories within its parent, and return its new path; None if it does not exist.

    A container can create many files and deep directories below it: removing them may take long, and must not block
    anything.
    """
    *parents, name = steps
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in parents:
            inner = os.open(step, _OPEN_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = inner
        number = 0
        while True:
            aside = f".{name}.gone-{number}"
            try:
                # Fails if an earlier one still exists and is not empty.
                os.rename(name, aside, src_dir_fd=handle, dst_dir_fd=handle)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or number >= _MAX_ASIDE:
                    raise
                number += 1
                continue
            return base.joinpath(*parents, aside)
    except FileNotFoundError:
        return None
    finally:
        os.close(handle)


def set_aside(folder: Path, name: str) -> Sequence[Path]:
    """Return the directories that `remove` has renamed and that still exist."""
    with suppress(OSError):
        return sorted(folder.glob(f".{name}.gone-*"))
    return ()
