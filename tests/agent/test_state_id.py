"""The id of a state directory: agents of one host are distinguished by it, also after a start on a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from dra_agent.agent import host_ownership
from dra_agent.agent.config import Config
from dra_agent.agent.host_ownership import ID_FILE
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.prepare.ownership import OwnerRecord, Ownership

ADDRESS = "0000:3b:00.0"
GPU = Device("gpu-0", "gpu", "nvidia", ADDRESS, {})


class Host:
    """A host whose agents join and leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"

    def state(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    @contextmanager
    def agent(self, name: str, driver: str = "gpu.example.com") -> Iterator[Ownership]:
        with ExitStack() as leaving:
            config = Config(state_dir=self.state(name), run_dir=self.run, driver_name=driver)
            yield host_ownership.join(config, leaving.callback)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def acquire(ownership: Ownership, uid: str) -> None:
    with ownership.acquire(uid, [GPU], Deadline.of(60)):
        pass


def release(ownership: Ownership, uid: str) -> None:
    ownership.release(uid, Deadline.of(60), [GPU])


@contextmanager
def full_disk(below: Path) -> Iterator[None]:
    """Let every write to a file below a directory fail."""
    write: Callable[[int, bytes], int] = os.write

    def refuse(handle: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{handle}").readlink().is_relative_to(below):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", refuse)
        yield


def test_devices_prepared_after_a_start_on_a_full_disk_are_its_own_after_a_restart(host: Host) -> None:
    with ExitStack() as first_run:
        with full_disk(host.state("one")):
            first = first_run.enter_context(host.agent("one"))
            with pytest.raises(RetryableError, match=rf"{ID_FILE}: .*No space left on device"):
                acquire(first, "a")
            assert not list((host.run / "devices").iterdir()) or not (host.run / "devices" / ADDRESS).read_bytes()
        acquire(first, "a")
        first.foreign_claims()
    with host.agent("one") as second:
        assert second.foreign_claims() == frozenset()
        acquire(second, "b")
        release(second, "a")
        release(second, "b")
    with host.agent("two") as other:
        acquire(other, "c")


def test_agents_of_two_state_directories_are_distinguished_after_a_start_on_a_full_disk(host: Host) -> None:
    with ExitStack() as runs:
        with full_disk(host.state("one")):
            one = runs.enter_context(host.agent("one"))
            with pytest.raises(PermanentError, match="another agent of this host serves driver"):
                runs.enter_context(host.agent("two"))
        acquire(one, "a")
        two = runs.enter_context(host.agent("two", "other.example.com"))
        with pytest.raises(DeviceHeldError, match=str(host.state("one"))):
            acquire(two, "b")
        assert two.foreign_claims() == {"a"}


def test_an_agent_of_the_same_state_directory_joins_one_that_started_on_a_full_disk(host: Host) -> None:
    with ExitStack() as runs:
        with full_disk(host.state("one")):
            old = runs.enter_context(host.agent("one"))
        new = runs.enter_context(host.agent("one"))
        acquire(new, "a")
        acquire(old, "b")
        release(old, "a")
        release(new, "b")
    with host.agent("two") as other:
        acquire(other, "c")


def test_devices_of_an_earlier_version_without_an_id_are_its_own(host: Host) -> None:
    """It owned them by the device number and the inode of its state directory."""
    status = host.state("one").stat()
    with host.agent("one") as first:
        acquire(first, "a")
        record = OwnerRecord(f"{status.st_dev:x}-{status.st_ino:x}", "/state", os.getpid(), ("a",))
        (host.run / "devices" / ADDRESS).write_bytes(msgspec.json.encode(record))
        assert first.foreign_claims() == frozenset()
        release(first, "a")
        acquire(first, "b")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_damaged_id_is_not_replaced(host: Host, content: bytes) -> None:
    with host.agent("one") as first:
        acquire(first, "a")
    id_ = (host.state("one") / ID_FILE).read_bytes()
    (host.state("one") / ID_FILE).write_bytes(content)
    with host.agent("one") as second, pytest.raises(RetryableError, match=rf"{ID_FILE}: "):
        acquire(second, "a")
    (host.state("one") / ID_FILE).write_bytes(id_)
    with host.agent("one") as third:
        acquire(third, "a")
