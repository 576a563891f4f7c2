"""Where the control daemon of one GPU has its pipes, logs and shared memory, and how containers see them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Mount
from dra_agent.errors import PermanentError, RetryableError

PIPES_IN_CONTAINER = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks unless told otherwise
_OPTIONS = ("rw", "nosuid", "nodev", "rbind", "rprivate")
_PIPE_LIMIT = 107
"""Bytes of a socket's path (unix(7)); the daemon makes "control_privileged" among its pipes."""
_LONGEST_PIPE = "control_privileged"


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one GPU's daemon."""

    folder: Path
    """Below the state directory, the GPU's own."""
    shm: Path
    """What daemon and clients have as /dev/shm: they exchange memory there."""

    @classmethod
    def of(cls, state_dir: Path, dev: Path, device: str) -> Place:
        """Give a device's place; its name is a DNS label. PermanentError where no socket fits below it."""
        folder = state_dir.absolute() / "mps" / device
        if len(str(folder / "pipe" / _LONGEST_PIPE).encode()) > _PIPE_LIMIT:
            raise PermanentError(
                f"the pipes of MPS would have paths longer than {_PIPE_LIMIT} bytes",
                where=str(folder),
                todo="choose a shorter --state-dir",
            )
        # In memory where the host has a place for that: what is shared must not be written to a disk.
        memory = dev.absolute() / "shm"
        return cls(folder, memory / f"dra-agent-{device}" if memory.is_dir() else folder / "shm")

    @property
    def pipe(self) -> Path:
        """The folder of the daemon's pipes."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """The folder of the daemon's logs."""
        return self.folder / "log"

    def make(self) -> None:
        """Make the folders; RetryableError where the disk refuses."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log.mkdir(mode=0o700, exist_ok=True)
            # Clients, and the server that works for them, are whoever a container runs as; the umask is the agent's.
            for path, mode in (
                (self.folder.parent, 0o711),
                (self.folder, 0o711),
                (self.pipe, 0o755),
                (self.shm, 0o1777),
            ):
                path.mkdir(exist_ok=True)
                if path.is_symlink() or not path.is_dir():
                    raise NotADirectoryError(20, "is no directory", str(path))
                path.chmod(mode)
        except OSError as error:
            raise RetryableError(
                f"cannot be made: {error.strerror}", where=str(error.filename or self.folder), todo="see to its disk"
            ) from error

    def remove(self) -> None:
        """Remove everything but the logs, which people may want to read."""
        shutil.rmtree(self.pipe, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)

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
