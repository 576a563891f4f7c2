"""Where the control daemon of one GPU has its pipes, logs and shared memory, and how containers see them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Mount
from dra_agent.command import HostCommand
from dra_agent.device_setup.mps import paths
from dra_agent.errors import PermanentError, RetryableError

PIPES_IN_CONTAINER = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks unless told otherwise
SHARED_MEMORY = "dra-agent"
"""Folder of the agent in /dev/shm."""
_RM = Path("/bin/rm")
_REMOVAL_S = 5.0
_FOREIGN = (errno.EPERM, errno.ENOTDIR, errno.ELOOP)
_OPTIONS = ("rw", "nosuid", "nodev", "rbind", "rprivate")
_PIPE_LIMIT = 107
"""Bytes of a socket's path (unix(7)); the daemon makes "control_privileged" among its pipes."""
_LONGEST_PIPE = "control_privileged"


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """The folders of one GPU's daemon."""

    folder: Path
    """Below the state directory, the GPU's own."""
    shm: Path
    """What daemon and clients have as /dev/shm: they exchange memory there."""

    @classmethod
    def of(cls, state_dir: Path, dev: Path, device: str) -> MpsPaths:
        """Give a device's place; its name is a DNS label. PermanentError where no socket fits below it."""
        folder = state_dir.absolute() / "mps" / device
        if len(str(folder / "pipe" / _LONGEST_PIPE).encode()) > _PIPE_LIMIT:
            raise PermanentError(
                f"the pipes of MPS would have paths longer than {_PIPE_LIMIT} bytes",
                where=str(folder),
                hint="choose a shorter --state-dir",
            )
        # In memory where the host has a place for that: what is shared must not be written to a disk.
        memory = dev.absolute() / "shm"
        return cls(folder, memory / SHARED_MEMORY / device if memory.is_dir() else folder / "shm")

    @property
    def record(self) -> Path:
        """Where the agent keeps which process the daemon is; no container sees this folder."""
        return self.folder / "daemon.json"

    @property
    def pipe(self) -> Path:
        """The folder of the daemon's pipes."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """The folder of the daemon's logs."""
        return self.folder / "log"

    def make(self) -> None:
        """Make the folders; RetryableError where the disk refuses, or where a folder is another user's."""
        # Clients, and the server that works for them, are whoever a container runs as; the umask is the agent's.
        state = (self.folder.parent.name, 0o711), (self.folder.name, 0o711)
        try:
            base = self.folder.parent.parent
            base.mkdir(parents=True, exist_ok=True)
            paths.make(base, *state, ("log", 0o700))
            paths.make(base, *state, ("pipe", 0o755))
            if self.shm.parent == self.folder:
                paths.make(base, *state, (self.shm.name, 0o1777))
            else:
                # Everybody may write /dev/shm, and nobody but the agent what lies below this folder.
                parent = self.shm.parent
                paths.make(parent.parent, (parent.name, 0o755), (self.shm.name, 0o1777))
        except OSError as error:
            hint = "remove it, or have its owner do so" if error.errno in _FOREIGN else "see to its disk"
            raise RetryableError(
                f"cannot be made: {error.strerror}", where=str(error.filename or self.folder), hint=hint
            ) from error

    def remove(self) -> None:
        """Remove everything but the logs, which people may want to read.

        It is out of the way when this returns. A container can have left more, and deeper, than can be removed at once:
        what is still there after a few seconds goes when this is called the next time.
        """
        for folder in (self.pipe, self.shm):
            with suppress(OSError):
                paths.remove(folder.parent, folder.name)
            left = [str(path) for path in paths.left_over(folder.parent, folder.name)]
            if left:
                # A process of its own: of a million files, or a thousand levels, the agent keeps nothing.
                with suppress(RetryableError):
                    HostCommand(_RM, _REMOVAL_S).run(["-rf", "--one-file-system", "--", *left])

    def edits(self, memory_mib: int, percentage: int | None) -> ContainerEdits:
        """Say what a container needs to be a client with these limits.

        They are of each process of the container, and the daemon holds them to no more than its own defaults.
        """
        env = [
            f"CUDA_MPS_PIPE_DIRECTORY={PIPES_IN_CONTAINER}",
            # Device 0 of what the container sees; the value has a unit of M or G.
            f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={memory_mib}M",
        ]
        if percentage is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}")
        mounts = (
            Mount(str(self.pipe), PIPES_IN_CONTAINER, _OPTIONS),
            Mount(str(self.shm), "/dev/shm", (*_OPTIONS, "noexec")),  # noqa: S108
        )
        return ContainerEdits(env=tuple(env), mounts=mounts)


_MOST_ASIDE = 100
"""Folders of one name that wait to be removed."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make(base: Path, *steps: tuple[str, int]) -> None:
    """Make folders below one another in `base`, each a name and a mode, whatever the umask is.

    Raises OSError: EPERM where a folder belongs to another user than the agent's; ENOTDIR, ELOOP where it is none.
    """
    at = base
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode in steps:
            at = at / name
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=handle)
            try:
                inner = os.open(name, _OPEN, dir_fd=handle)
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


def remove(base: Path, *steps: str) -> Path | None:
    """Move the last of these folders out of the way, next to itself, and give its new path; None where it is not there.

    What a container wrote below it can be deep and plenty: removing it may take long, and keeps nothing else waiting.
    """
    *parents, name = steps
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in parents:
            inner = os.open(step, _OPEN, dir_fd=handle)
            os.close(handle)
            handle = inner
        number = 0
        while True:
            aside = f".{name}.gone-{number}"
            try:
                # Fails where a former one is still there with something in it.
                os.rename(name, aside, src_dir_fd=handle, dst_dir_fd=handle)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or number >= _MOST_ASIDE:
                    raise
                number += 1
                continue
            return base.joinpath(*parents, aside)
    except FileNotFoundError:
        return None
    finally:
        os.close(handle)


def left_over(folder: Path, name: str) -> Sequence[Path]:
    """Give what `remove` has moved aside of a folder and nothing has removed yet."""
    with suppress(OSError):
        return sorted(folder.glob(f".{name}.gone-*"))
    return ()
