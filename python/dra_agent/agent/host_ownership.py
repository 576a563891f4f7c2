"""The place of this agent among the agents of its host: its id, its driver's lock, and the devices that it owns.

`--run-dir` is the one directory that all agents of a host share, independent of the rest of their configuration.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from dra_agent.agent.config import Config
from dra_agent.atomic_file import sync_directory
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.file_lock import keep_private, lock, try_lock
from dra_agent.json_decode import decode_json
from dra_agent.prepare.ownership import DeviceOwnership, Ownership, SimulatedOwnership

log = logging.getLogger(__name__)

ID_FILE = "agent-id"
START_TIMEOUT_S = 5.0
"""Time for another agent that starts at the same time to record its identity."""


class _DriverRecord(msgspec.Struct, frozen=True):
    owner: str
    """The id of the state directory, or `directory` where it had none."""
    state_dir: str
    pid: int
    directory: str = ""
    """Device number and inode of the state directory: the same while an agent runs on it."""


class OtherAgent(msgspec.Struct, frozen=True):
    """An agent of this host that serves another driver."""

    driver: str
    state_dir: str
    pid: int
    is_running: bool
    """False if it has ended since the host booted."""


def other_agents(config: Config) -> list[OtherAgent]:
    """Return the agents of this host for other drivers and the same hardware, as far as their records can be read."""
    if config.simulate is not None:
        return []
    folder = _directory(config) / "drivers"
    found = []
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names only
    except OSError:
        return []
    for name in names:
        if name == config.driver_name:
            continue
        try:
            handle = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            record = _record(handle)
            if record is not None and record.state_dir != str(config.state_dir):
                # Holding the lock for a moment blocks no start: starting agents retry for seconds.
                running = not try_lock(handle)
                found.append(OtherAgent(name, record.state_dir, record.pid, running))
        except OSError:
            continue
        finally:
            os.close(handle)
    return found


def join(config: Config, closing: Callable[[Callable[[], None]], object]) -> Ownership:
    """Claim this agent's devices and driver name on the host until the callback passed to `closing` runs.

    Raises PermanentError where another agent on another state directory serves the same driver for the same devices;
    RetryableError where `run_dir` cannot be used.
    """
    if config.simulate is not None:
        # Simulated devices exist once per state directory. Specs of real ones may be in the same CDI directory.
        return SimulatedOwnership(config.run_dir / "devices")
    directory = _directory(config)
    try:
        identity = StateIdentity(config.state_dir)
        (directory / "devices").mkdir(mode=0o755, parents=True, exist_ok=True)
        (directory / "drivers").mkdir(mode=0o755, exist_ok=True)
        handle = _lock_driver(directory / "drivers" / config.driver_name, identity, config)
    except OSError as error:
        raise RetryableError(
            f"cannot be used to distinguish the agents of a host: {error.strerror}",
            where=str(error.filename or directory),
            hint="run the agent as root, or name a directory that all agents of this host use with --run-dir",
        ) from error
    closing(lambda: os.close(handle))
    return DeviceOwnership(directory / "devices", config.state_dir, identity.id, {identity.directory})


class StateIdentity:
    """By which agents recognize what agents on the same state directory did: its random id, in a file of it.

    The id is on disk before it is used anywhere. While it cannot be written, the agent runs and owns no device.
    """

    def __init__(self, state_dir: Path) -> None:
        """Read the id, or create it if that is possible now. Raises OSError for a directory that does not exist."""
        self._state_dir = state_dir
        self._known = ""
        status = state_dir.stat()
        self.directory = f"{status.st_dev:x}-{status.st_ino:x}"
        """Device number and inode, by which earlier versions owned devices while there was no id.

        They may be those of a directory that was removed.
        """
        try:
            self.id()
        except RetryableError as error:
            log.error("no device can be prepared: the state directory has no id", extra={"reason": str(error)})

    def id(self) -> str:
        """Return the id; raises RetryableError while there is none and none can be written."""
        if not self._known:
            self._known = state_id(self._state_dir)
        return self._known

    @property
    def name(self) -> str:
        """The id, or `directory` while there is none."""
        return self._known or self.directory

    def is_of(self, record: _DriverRecord) -> bool:
        """Return whether the process of a record that still runs has this state directory."""
        return record.owner in (self._known, self.directory) or record.directory == self.directory


def state_id(state_dir: Path) -> str:
    """Return the random id of a state directory, created if missing; all agents that share it have the same.

    Raises RetryableError where it cannot be read or created: another one would make its devices those of others.
    """
    path = state_dir / ID_FILE
    try:
        return _read_id(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _without_id(path, error)
    generated = uuid.uuid4().hex
    temporary = state_dir / f".{ID_FILE}.{generated}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, f"{generated}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
        sync_directory(state_dir)
        return _read_id(path)
    except OSError as error:
        _without_id(path, error)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _read_id(path: Path) -> str:
    known = path.read_bytes().strip()
    if not known or not known.isalnum():
        raise RetryableError(
            "is damaged", where=str(path), hint="restore it, or remove it when no device of this agent is prepared"
        )
    return known.decode("ascii")


def _without_id(path: Path, error: OSError) -> NoReturn:
    raise RetryableError(
        f"the id of the state directory cannot be read or written: {error.strerror}",
        where=str(path),
        hint="check free space and permissions of the state directory; the agent retries",
    ) from error


def _directory(config: Config) -> Path:
    root = config.sysfs_root.resolve()
    if str(root) == "/sys":
        return config.run_dir
    import hashlib  # needed on such a host only

    # Another tree is other hardware, and the same for every agent that reads it.
    return config.run_dir / "hosts" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def _lock_driver(path: Path, identity: StateIdentity, config: Config) -> int:
    """Hold a shared lock while the agent runs; the content names the state directory."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    other: _DriverRecord | None = None

    def attempt(handle: int) -> bool:
        """Be the first agent of this driver, or another one on the same state directory."""
        nonlocal other
        if try_lock(handle):
            record = _DriverRecord(identity.name, str(config.state_dir), os.getpid(), identity.directory)
            data = msgspec.json.encode(record) + b"\n"
            os.pwrite(handle, data, 0)
            os.ftruncate(handle, len(data))
            fcntl.flock(handle, fcntl.LOCK_SH)
            return True
        # The record may be that of an agent that ended, or be written in a moment.
        other = _record(handle)
        return other is not None and identity.is_of(other) and try_lock(handle, shared=True)

    try:
        keep_private(handle)
        if lock(handle, Deadline.of(START_TIMEOUT_S), attempt):
            return handle
        where = f", with state directory {other.state_dir} (pid {other.pid})" if other is not None else ""
        raise PermanentError(
            f"another agent of this host serves driver {config.driver_name}{where}",
            where=str(path),
            hint="stop one of them: two agents must not manage the same devices",
        )
    except BaseException:
        os.close(handle)
        raise


def _record(handle: int) -> _DriverRecord | None:
    try:
        return decode_json(os.pread(handle, 4096, 0).partition(b"\n")[0], type=_DriverRecord)
    except msgspec.DecodeError:
        return None
