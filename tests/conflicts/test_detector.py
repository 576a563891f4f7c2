"""Asking the API server now and then, and what is remembered of its answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from dra_agent.conflicts import DeviceConflicts, SavedConflicts, load_conflicts, save_conflicts
from dra_agent.conflicts.detector import ConflictDetector
from dra_agent.inventory import Attribute, Device
from dra_agent.kube_client import ApiClient, connect
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi

GPU = Device("gpu-0", "gpu", "nvidia", "0000:1b:00.0", attributes={"type": Attribute.of("gpu")})
NODE = {"metadata": {"name": "node-1"}, "status": {"capacity": {}}}
PLUGIN = {"metadata": {"name": "node-1"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
PLUGGED = DeviceConflicts({"gpu-0": "device plugin nvidia.com/gpu"})
Story = Callable[[ConflictDetector, list[DeviceConflicts], list[Device]], Awaitable[None]]


class Looking(Protocol):
    """Run a story beside somebody who looks at the API server."""

    def __call__(
        self, story: Story, *, every: float = 0.05, patience: float = 60.0, agents: dict[str, str] | None = None
    ) -> None: ...


@pytest.fixture
def looking(fake_api: FakeApi, tmp_path: Path) -> Looking:
    """Run a story beside somebody who looks at the fake API server every 50 ms."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(story: Story, *, every: float = 0.05, patience: float = 60.0, agents: dict[str, str] | None = None) -> None:
        async def live(api: ApiClient) -> None:
            told: list[DeviceConflicts] = []
            devices = [GPU]
            found = ConflictDetector(
                api,
                node="node-1",
                driver="ours",
                devices=lambda: devices,
                changed=told.append,
                agents=lambda: agents or {},
                every=every,
            )
            await found.start(patience)
            try:
                await story(found, told, devices)
            finally:
                await found.stop()

        async def main() -> None:
            async with connect(path) as api:
                await live(api)

        asyncio.run(main())

    return run


def foreign(name: str = "theirs", **spec: Any) -> dict[str, Any]:
    devices = [{"name": "gpu-0", "attributes": {"pciAddr": {"string": "0000:1b:00.0"}}}]
    return {
        "metadata": {"name": name},
        "spec": {"driver": "gpu.amd.com", "nodeName": "node-1", "devices": devices, **spec},
    }


def test_the_first_look_is_over_when_publishing_may_begin(fake_api: FakeApi, looking: Looking) -> None:
    fake_api.put("nodes", PLUGIN)

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        assert found.verdict == PLUGGED and told == [PLUGGED]

    looking(story)


def test_only_slices_of_others_on_this_node_are_asked_for(fake_api: FakeApi, looking: Looking) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign("ours", driver="ours"))
    fake_api.put("resourceslices", foreign("elsewhere", nodeName="node-2"))

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        assert not found.verdict and told == []
        (query,) = {seen.query.get("fieldSelector") for seen in fake_api.requests if "resourceslices" in seen.path}
        assert query == "spec.nodeName=node-1,spec.driver!=ours"
        assert not any(seen.write or seen.watch for seen in fake_api.requests)

    looking(story)


def test_another_agent_of_the_host_is_named(fake_api: FakeApi, looking: Looking) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign(driver="second.example.com"))

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        (manager,) = found.verdict.by_manager()
        assert manager == "driver second.example.com (dra-agent of this host, state directory /var/lib/second)"

    looking(story, agents={"second.example.com": "/var/lib/second"})


def test_a_manager_that_comes_and_goes_is_told_once_each(fake_api: FakeApi, looking: Looking) -> None:
    fake_api.put("nodes", NODE)

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        assert told == []
        fake_api.put("resourceslices", foreign())
        await eventually_async(lambda: told)
        fake_api.remove("resourceslices", "theirs")
        await eventually_async(lambda: len(told) == 2)
        await asyncio.sleep(0.2)
        assert told == [DeviceConflicts({"gpu-0": "driver gpu.amd.com"}), DeviceConflicts()]

    looking(story)


def test_a_device_that_is_plugged_in_is_judged_by_what_was_seen_last(fake_api: FakeApi, looking: Looking) -> None:
    fake_api.put("nodes", PLUGIN)

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        asked = len(fake_api.requests)
        devices.append(Device("gpu-9", "gpu", "nvidia", "0000:99:00.0", attributes={}))
        found.devices_changed()
        assert found.verdict.by_manager() == {"device plugin nvidia.com/gpu": ["gpu-0", "gpu-9"]}
        assert len(fake_api.requests) == asked

    looking(story, every=3600)


def test_a_server_that_fails_changes_no_verdict_and_is_asked_again(
    fake_api: FakeApi, looking: Looking, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        fake_api.fail(500, times=3)
        await eventually_async(lambda: fake_api.faults.pending == 0)
        await asyncio.sleep(0.2)
        assert found.verdict == PLUGGED and told == [PLUGGED]
        # Looked at here: a look that the end of the story cuts short is another failure.
        said = [
            vars(record)["reason"]
            for record in caplog.records
            if "cannot determine the other drivers" in record.message
        ]
        assert len(said) == len(set(said)) > 0, "the same failure is said once"

    looking(story)


def test_who_may_not_ask_publishes_all_the_same_and_says_so(
    fake_api: FakeApi, looking: Looking, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)
    fake_api.fail(403, times=None)
    began = time.monotonic()

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        assert time.monotonic() - began < 50 and not found.verdict

    looking(story)
    assert "cannot determine the other drivers" in caplog.text


def test_a_server_that_is_silent_does_not_keep_the_node_without_devices(
    fake_api: FakeApi, looking: Looking, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)
    speaks = threading.Event()
    fake_api.hang(DEADLINE_S, times=None, when=speaks)

    async def story(found: ConflictDetector, told: list[DeviceConflicts], devices: list[Device]) -> None:
        assert not found.verdict
        speaks.set()
        await eventually_async(lambda: found.verdict)

    looking(story, patience=0.1)
    assert "not known yet" in caplog.text


def test_what_was_found_is_remembered_for_commands(tmp_path: Path) -> None:
    assert load_conflicts(tmp_path) == SavedConflicts()
    found = SavedConflicts(PLUGGED, published=True)
    save_conflicts(tmp_path, found)
    assert load_conflicts(tmp_path) == found
    assert [path.name for path in tmp_path.iterdir()] == ["neighbours.json"]
    assert (tmp_path / "neighbours.json").stat().st_mode & 0o077 == 0
    for damage in (b"", b"{", b"[]", b'{"verdict": 5}', b"\xff"):
        (tmp_path / "neighbours.json").write_bytes(damage)
        assert load_conflicts(tmp_path) == SavedConflicts()
    save_conflicts(tmp_path / "missing", found)
