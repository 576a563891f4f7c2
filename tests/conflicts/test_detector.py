"""Other managers that the API server shows, and the saved result."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from dra_agent.conflicts import DeviceConflicts, SavedConflicts, load_conflicts, save_conflicts
from dra_agent.conflicts.detector import ConflictDetector
from dra_agent.conflicts.shared_slices import SharedSliceReflector
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from dra_agent.kube_client import ApiClient, connect
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.publish.reflector import SliceReflector
from dra_agent.publish.slice_store import SliceStore
from dra_agent.retry import Backoff
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi

GPU = Device("gpu-0", "gpu", "nvidia", "0000:1b:00.0", attributes={"type": Attribute.of("gpu")})
NODE = {"metadata": {"name": "node-1"}, "status": {"capacity": {}}}
PLUGIN = {"metadata": {"name": "node-1"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
PLUGIN_CONFLICT = DeviceConflicts({"gpu-0": "device plugin nvidia.com/gpu"})
Scenario = Callable[[ConflictDetector, list[DeviceConflicts], list[Device]], Awaitable[None]]


@dataclass
class FakeHost:
    """A ConflictHost whose devices and other agents are those of the test."""

    devices: list[Device]
    reported: list[DeviceConflicts]
    agents: dict[str, str]
    identities: frozenset[str] = frozenset()

    def other_agents(self) -> dict[str, str]:
        return self.agents

    def conflicts_changed(self, conflicts: DeviceConflicts) -> None:
        self.reported.append(conflicts)


class RunDetector(Protocol):
    """Run a scenario with a detector that follows the API server."""

    def __call__(
        self,
        scenario: Scenario,
        *,
        return_delay_s: float = 0.05,
        patience: float = 60.0,
        agents: dict[str, str] | None = None,
    ) -> None: ...


@pytest.fixture
def run_detector(fake_api: FakeApi, tmp_path: Path) -> RunDetector:
    """Run a scenario with a detector, and the watches that it needs."""
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(
        scenario: Scenario,
        *,
        return_delay_s: float = 0.05,
        patience: float = 60.0,
        agents: dict[str, str] | None = None,
    ) -> None:
        async def run_scenario(api: ApiClient) -> None:
            reported: list[DeviceConflicts] = []
            devices = [GPU]
            watch = NodeWatch(api, "node-1", backoff=Backoff(first=0.01, longest=0.1))
            detector = ConflictDetector(
                watch,
                FakeHost(devices, reported, agents or {}),
                node="node-1",
                driver="ours",
                return_delay_s=return_delay_s,
            )
            slices = SliceReflector(
                api,
                SliceStore(),
                node="node-1",
                driver="ours",
                others=detector.slices,
                on_external_change=lambda _: None,
                caught_up=lambda: None,
                urgent=lambda: True,
            )
            shared = SharedSliceReflector(api, detector.slices)
            following = [asyncio.create_task(reflector.run()) for reflector in (watch, slices, shared)]
            try:
                await detector.start(patience)
                await scenario(detector, reported, devices)
            finally:
                await detector.stop()
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)

        async def main() -> None:
            async with connect(path) as api:
                await run_scenario(api)

        asyncio.run(main())

    return run


def foreign(name: str = "theirs", **spec: Any) -> dict[str, Any]:
    devices = [{"name": "gpu-0", "attributes": {"pciAddr": {"string": "0000:1b:00.0"}}}]
    return {
        "metadata": {"name": name},
        "spec": {"driver": "gpu.amd.com", "nodeName": "node-1", "devices": devices, **spec},
    }


def test_first_check_completes_before_publishing(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", PLUGIN)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert detector.conflicts == PLUGIN_CONFLICT and reported == [PLUGIN_CONFLICT]

    run_detector(scenario)


def test_only_slices_that_this_node_may_have_are_requested(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign("ours", driver="ours"))
    fake_api.put("resourceslices", foreign("elsewhere", nodeName="node-2"))

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert not detector.conflicts and reported == []
        queries = {
            request.query.get("fieldSelector") for request in fake_api.requests if "resourceslices" in request.path
        }
        assert queries == {"spec.nodeName=node-1", "spec.nodeName="}
        assert not any(request.write for request in fake_api.requests)

    run_detector(scenario)


def test_another_agent_of_the_host_is_named(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign(driver="second.example.com"))

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        (manager,) = set(detector.conflicts.managers.values())
        assert manager == "driver second.example.com (dra-agent of this host, state directory /var/lib/second)"

    run_detector(scenario, agents={"second.example.com": "/var/lib/second"})


def test_each_change_of_managers_is_reported_once(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", NODE)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert reported == []
        fake_api.put("resourceslices", foreign())
        await eventually_async(lambda: reported)
        fake_api.remove("resourceslices", "theirs")
        await eventually_async(lambda: len(reported) == 2)
        fake_api.put("resourceslices", foreign())
        await eventually_async(lambda: reported[2:])
        conflict = DeviceConflicts({"gpu-0": "driver gpu.amd.com"})
        assert reported == [conflict, DeviceConflicts(), conflict]

    run_detector(scenario)


def test_a_new_device_is_checked_against_the_last_observation(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", PLUGIN)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        await eventually_async(lambda: sum(request.watch for request in fake_api.requests) == 3)  # Node and slices
        requests_before = len(fake_api.requests)
        devices.append(Device("gpu-9", "gpu", "nvidia", "0000:99:00.0", attributes={}))
        detector.devices_changed()
        assert detector.conflicts.groups() == [("device plugin nvidia.com/gpu", ["gpu-0", "gpu-9"], "")]
        assert len(fake_api.requests) == requests_before

    run_detector(scenario)


def test_a_device_returns_only_after_the_other_driver_has_been_gone_for_a_while(
    fake_api: FakeApi, run_detector: RunDetector
) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign())
    conflict = DeviceConflicts({"gpu-0": "driver gpu.amd.com"})

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        # A driver that is updated removes its slices and publishes them again.
        fake_api.remove("resourceslices", "theirs")
        await eventually_async(lambda: not detector.slices.devices(NODE))
        fake_api.put("resourceslices", foreign())
        await eventually_async(lambda: detector.slices.devices(NODE))
        assert detector.conflicts == conflict and reported == [conflict]
        # A device that is gone here needs no delay.
        fake_api.remove("resourceslices", "theirs")
        await eventually_async(lambda: not detector.slices.devices(NODE))
        devices.clear()
        detector.devices_changed()
        assert reported == [conflict, DeviceConflicts()]

    run_detector(scenario, return_delay_s=3600)


def test_a_failing_server_keeps_the_conflicts_and_is_retried(
    fake_api: FakeApi, run_detector: RunDetector, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        fake_api.fail(500, times=6)
        fake_api.end_watches()
        await eventually_async(lambda: fake_api.faults.pending == 0)
        assert detector.conflicts == PLUGIN_CONFLICT and reported == [PLUGIN_CONFLICT]
        fake_api.put("nodes", NODE)
        await eventually_async(lambda: not detector.conflicts)
        reasons = [
            vars(record)["reason"]
            for record in caplog.records
            if "cannot determine the other drivers" in record.message
        ]
        assert len(reasons) == len(set(reasons)) > 0, "the same failure is logged once"

    run_detector(scenario)


def shared(**spec: Any) -> dict[str, Any]:
    """A slice that names no single node."""
    item = foreign("shared", **spec)
    del item["spec"]["nodeName"]
    return item


def test_a_slice_that_selects_nodes_counts_while_the_node_has_the_label(
    fake_api: FakeApi, run_detector: RunDetector
) -> None:
    fake_api.put("nodes", {**NODE, "metadata": {"name": "node-1", "labels": {"fabric": "1"}}})
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "fabric", "operator": "In", "values": ["1"]}]}]}
    fake_api.put("resourceslices", shared(nodeSelector=selector))
    conflict = DeviceConflicts({"gpu-0": "driver gpu.amd.com"})

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert detector.conflicts == conflict
        fake_api.put("nodes", NODE)
        await eventually_async(lambda: not detector.conflicts)
        fake_api.put("resourceslices", shared(allNodes=True))
        await eventually_async(lambda: detector.conflicts)
        fake_api.remove("resourceslices", "shared")
        await eventually_async(lambda: not detector.conflicts)
        assert reported == [conflict, DeviceConflicts(), conflict, DeviceConflicts()]

    run_detector(scenario)


def test_slices_of_the_node_are_judged_where_shared_ones_cannot_be_read(
    fake_api: FakeApi, run_detector: RunDetector
) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign())
    refused = fake_api.fail(403, times=None, path="spec.nodeName%3D&")

    def watches() -> list[Any]:
        return [request for request in fake_api.requests if request.watch]

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert detector.conflicts == DeviceConflicts({"gpu-0": "driver gpu.amd.com"})
        assert not any(request.query.get("fieldSelector") == "spec.nodeName=" for request in watches())
        fake_api.faults.lift(refused)
        fake_api.put("resourceslices", shared(allNodes=True, driver="a.example.com"))
        await eventually_async(lambda: "driver a.example.com" in detector.conflicts.managers.values())

    run_detector(scenario, patience=DEADLINE_S)


def test_withheld_devices_keep_their_reason_until_they_return(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign(driver="gpu.nvidia.com", devices=[{"name": "gpu-0", "attributes": {}}]))

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        conflict = detector.conflicts
        assert conflict.unmatched == {"gpu-0": "its slices do not identify the devices"}
        fake_api.remove("resourceslices", "theirs")
        await eventually_async(lambda: not detector.slices.devices(NODE))
        assert detector.conflicts == conflict and reported == [conflict]

    run_detector(scenario, return_delay_s=3600)


def test_a_driver_that_cannot_be_judged_is_only_named(fake_api: FakeApi, run_detector: RunDetector) -> None:
    fake_api.put("nodes", NODE)
    fake_api.put("resourceslices", foreign(driver="x.example.com", devices=[{"name": "x-0"}]))

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert detector.conflicts == DeviceConflicts(unjudged=("driver x.example.com",)) and not detector.conflicts

    run_detector(scenario)


def test_a_missing_permission_does_not_block_publishing(
    fake_api: FakeApi, run_detector: RunDetector, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)
    fake_api.fail(403, times=None)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert not detector.conflicts

    run_detector(scenario, patience=100 * DEADLINE_S)
    assert "cannot determine the other drivers" in caplog.text


def test_a_hanging_server_does_not_block_publishing(
    fake_api: FakeApi, run_detector: RunDetector, caplog: pytest.LogCaptureFixture
) -> None:
    fake_api.put("nodes", PLUGIN)
    responds = threading.Event()
    fake_api.hang(DEADLINE_S, times=None, when=responds)

    async def scenario(detector: ConflictDetector, reported: list[DeviceConflicts], devices: list[Device]) -> None:
        assert not detector.conflicts
        responds.set()
        await eventually_async(lambda: detector.conflicts)

    run_detector(scenario, patience=0.1)
    assert "not known yet" in caplog.text


def test_conflicts_are_saved_for_commands(tmp_path: Path) -> None:
    assert load_conflicts(tmp_path) == SavedConflicts()
    saved = SavedConflicts(PLUGIN_CONFLICT, published=True)
    save_conflicts(tmp_path, saved)
    assert load_conflicts(tmp_path) == saved
    assert [path.name for path in tmp_path.iterdir()] == ["neighbours.json"]
    assert (tmp_path / "neighbours.json").stat().st_mode & 0o077 == 0
    assert sorted(json.loads((tmp_path / "neighbours.json").read_bytes())) == ["published", "verdict"]
    old = b'{"verdict":{"managers":{"gpu-0":"device plugin nvidia.com/gpu"}},"published":true}'
    (tmp_path / "neighbours.json").write_bytes(old)
    assert load_conflicts(tmp_path) == saved
    found = DeviceConflicts({"gpu-0": "driver x"}, {"gpu-0": "its slices do not identify the devices"}, ("driver y",))
    save_conflicts(tmp_path, SavedConflicts(found))
    assert load_conflicts(tmp_path).conflicts == found
    for damage in (b"", b"{", b"[]", b'{"verdict": 5}', b"\xff"):
        (tmp_path / "neighbours.json").write_bytes(damage)
        assert load_conflicts(tmp_path) == SavedConflicts()
    save_conflicts(tmp_path / "missing", saved)
