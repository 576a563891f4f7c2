"""A source of processes that hangs or fails: it is named, and nothing else waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.device_setup.shares.owners import ProcessOwners, UnknownOwnerError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.processes.containers import Place
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.process_reader import ProcessReader, Uses
from dra_agent.telemetry.process_use import ProcessUse
from dra_agent.telemetry.sources.registry import SourceRegistry
from eventually import eventually

GPU = Device("gpu-0000-1b-00-0", "gpu", "intel", "0000:1b:00.0", {})
USES = (ProcessUse((Place("host"),), {"render": 0.5}),)


class Source:
    """Returns USES once `goes` is set, or raises."""

    name = "fake"

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.error: Exception | None = None

    def can_read(self, device: Device) -> bool:
        return True

    def read(self, device: Device, owners: ProcessOwners, users: Callable[[], Collection[int]]) -> Uses | None:
        self.goes.wait()
        if self.error is not None:
            raise self.error
        return USES

    def close(self) -> None:
        pass


class Sources(SourceRegistry):
    def __init__(self, host: Host, source: Source) -> None:
        super().__init__(host)
        self.source = source

    def processes_of(self, device: Device) -> Source:
        return self.source


class Rig:
    def __init__(self, host: Host, threads: DaemonExecutor) -> None:
        self.source = Source()
        self.host, self.threads = host, threads
        self.failures: list[TelemetryFailure] = []
        self.owners = ProcessOwners(host, (), standalone=False, is_sample=True)
        self.wait(30.0)

    def wait(self, timeout_s: float) -> None:
        """Set how long one read may take."""
        self.reader = ProcessReader(Sources(self.host, self.source), self.threads, timeout_s)

    def read(self) -> Uses | None:
        self.failures = []
        return self.reader.read(GPU, self.owners, list, self.failures)

    def messages(self) -> list[str]:
        assert all((failure.source, failure.device) == ("fake", GPU.name) for failure in self.failures)
        return [failure.message for failure in self.failures]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    threads = DaemonExecutor(2, "test")
    rig = Rig(Host(tmp_path, tmp_path, tmp_path), threads)
    yield rig
    rig.source.goes.set()
    threads.shutdown()


def test_a_read_that_hangs_is_left_behind_until_it_returns(rig: Rig) -> None:
    rig.wait(0.5)
    assert rig.read() is None
    assert rig.messages() == ["no response about its processes within 0.5 s"]
    assert rig.read() is None
    assert rig.messages() == ["an earlier read of its processes has not returned"]
    rig.source.goes.set()
    eventually(lambda: rig.read() == USES)
    assert rig.messages() == []


@pytest.mark.parametrize(
    ("error", "messages"),
    [
        (ValueError("a lie"), ["a lie"]),
        (PermissionError(13, "no"), ["[Errno 13] no"]),
        (UnknownOwnerError("hidden"), []),
        (KeyError("defect"), ["KeyError: 'defect'"]),
    ],
)
def test_a_read_that_fails_is_named(rig: Rig, error: Exception, messages: list[str]) -> None:
    rig.source.goes.set()
    rig.source.error = error
    assert (rig.read(), rig.messages()) == (None, messages)
