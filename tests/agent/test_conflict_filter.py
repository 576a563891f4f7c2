"""A real agent on a node where another manager advertises the same devices."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import preloaded
from agent.conftest import AgentProcess, Start
from dra_agent.agent import conflict_filter
from dra_agent.agent.config import Config
from dra_agent.agent.conflict_filter import ConflictFilter, event_note
from dra_agent.agent.device_state import DeviceState
from dra_agent.conflicts import ConflictGroup, DeviceConflicts, SavedConflicts, load_conflicts, save_conflicts
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import ObjectList, WatchEvent
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.status import EventRecorder
from eventually import DEADLINE_S, eventually
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import FakeKubelet

DRIVER = "dra-agent.internal"
GPU = "gpu-0000-00-04-0"
WITH_PLUGIN = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-a", "uid": "node-uid"},
    "status": {"capacity": {"cpu": "8", "nvidia.com/gpu": "1"}},
}
WITHOUT_PLUGIN: dict[str, Any] = {**WITH_PLUGIN, "status": {"capacity": {"cpu": "8"}}}
OTHER_DRIVER_SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "theirs"},
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:00:04.0"}}},
        ],
    },
}


@pytest.fixture
def driver(start: Start, fake_api: FakeApi, tmp_path: Path, kubelet_dir: Path) -> Callable[..., AgentProcess]:
    """Start an agent in Kubernetes mode on node-a."""
    credentials = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*flags: str) -> AgentProcess:
        where = ("--kubelet-dir", str(kubelet_dir), "--kubeconfig", str(credentials))
        return start("--no-standalone", *where, "--metrics-address", "127.0.0.1:0", *flags)

    return run


def published(api: FakeApi) -> set[str]:
    slices = [slice_ for slice_ in api.objects("resourceslices") if slice_["spec"]["driver"] == DRIVER]
    return {device["name"] for slice_ in slices for device in slice_["spec"].get("devices", ())}


def written(api: FakeApi) -> list[set[str]]:
    """Return the devices of each request that writes a slice."""
    return [
        {device["name"] for device in request.body["spec"].get("devices", ())}
        for request in api.writes()
        if request.method in ("POST", "PUT") and "/resourceslices" in request.path
    ]


def devices_command(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(["devices", "--simulate", "vm-1gpu", "--state-dir", str(state), *arguments])


@pytest.mark.parametrize(
    ("node", "other_slice", "manager"),
    [
        (WITH_PLUGIN, None, "device plugin nvidia.com/gpu"),
        (WITHOUT_PLUGIN, OTHER_DRIVER_SLICE, "driver gpu.nvidia.com"),
    ],
    ids=["device plugin", "driver"],
)
def test_devices_of_another_manager_are_not_published_but_reported(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path, node: Any, other_slice: Any, manager: str
) -> None:
    fake_api.put("nodes", node)
    if other_slice is not None:
        fake_api.put("resourceslices", other_slice)
    agent = driver("--config", str(with_nics(state))).ready()
    eventually(lambda: any(name.startswith("nic-") for name in published(fake_api)), agent.log_text)
    agent.wait_for("other drivers advertise devices of this node too")
    fake_api.wait(lambda: any(event["reason"] == "SecondManager" for event in fake_api.objects("events")))
    (event,) = [event_ for event_ in fake_api.objects("events") if event_["reason"] == "SecondManager"]
    assert event["regarding"]["kind"] == "Node" and event["regarding"]["name"] == "node-a"
    assert (
        event["note"] == f"{manager} advertises 1 device of this node too, which is not published by dra-agent: {GPU}"
    )
    # A thread writes the conflicts for other processes; nothing waits for it.
    eventually(lambda: manager in load_conflicts(state).conflicts.managers.values(), agent.log_text)
    assert f'dra_agent_second_manager_devices{{manager="{manager}"}} 1.0' in agent.get("/metrics")[1]
    output = devices_command(state)
    assert GPU not in output.stdout and f"not published (other-manager): {GPU}: {manager}" in output.stderr
    assert agent.end() == 0
    assert not any(GPU in names for names in written(fake_api))


def test_devices_that_a_known_driver_does_not_identify_are_not_published(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path
) -> None:
    fake_api.put(
        "nodes", {**WITHOUT_PLUGIN, "metadata": {"name": "node-a", "uid": "node-uid", "labels": {"gpus": "1"}}}
    )
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpus", "operator": "Exists"}]}]}
    spec = {**OTHER_DRIVER_SLICE["spec"], "nodeSelector": selector, "devices": [{"name": "gpu-0", "attributes": {}}]}
    del spec["nodeName"]
    fake_api.put("resourceslices", {**OTHER_DRIVER_SLICE, "spec": spec})
    agent = driver("--config", str(with_nics(state))).ready()
    eventually(lambda: any(name.startswith("nic-") for name in published(fake_api)), agent.log_text)
    fake_api.wait(lambda: any(event["reason"] == "SecondManager" for event in fake_api.objects("events")))
    (event,) = [event_ for event_ in fake_api.objects("events") if event_["reason"] == "SecondManager"]
    assert event["note"] == (
        "driver gpu.nvidia.com may advertise 1 device of this node too (its slices do not identify the devices), which"
        f" is not published by dra-agent: {GPU}"
    )
    eventually(lambda: load_conflicts(state).conflicts.unmatched, agent.log_text)
    output = devices_command(state)
    assert (
        GPU not in output.stdout
        and f"not published (unmatched-manager): {GPU}: driver gpu.nvidia.com may advertise" in output.stderr
    )
    assert agent.end() == 0
    assert not any(GPU in names for names in written(fake_api))


def with_nics(state: Path) -> Path:
    """Include the only NIC of the virtual machine, which is its uplink and therefore excluded by default."""
    path = state.with_name("config.toml")
    path.write_text('[inventory]\nhost_uplink = "include"\n')
    return path


def test_second_manager_publish_publishes_the_devices(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path
) -> None:
    fake_api.put("nodes", WITH_PLUGIN)
    agent = driver("--second-manager", "publish").ready()
    eventually(lambda: GPU in published(fake_api), agent.log_text)
    eventually(lambda: load_conflicts(state).published, agent.log_text)
    doctor = [
        sys.executable,
        "-m",
        "dra_agent",
        "doctor",
        "--simulate",
        "vm-1gpu",
        "--state-dir",
        str(state),
        "-o",
        "json",
    ]
    findings = json.loads(subprocess.run(doctor, capture_output=True, text=True, check=False).stdout)["findings"]
    (problem,) = [finding for finding in findings if finding.get("where") == "device plugin nvidia.com/gpu"]
    assert problem["severity"] == "problem" and "two pods" in problem["what"]
    assert GPU in devices_command(state).stdout
    agent.end()
    assert GPU in published(fake_api)


def test_a_claim_that_holds_such_a_device_continues(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    fake_api.put("nodes", WITH_PLUGIN)
    uid = str(uuid.uuid4())
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": GPU}
    claim = {
        "metadata": {"namespace": "default", "name": "held", "uid": uid},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    uid = fake_api.put("resourceclaims", claim)["metadata"]["uid"]
    agent = driver().ready()
    agent.wait_for("other drivers advertise devices of this node too")

    async def scenario() -> None:
        kubelet = FakeKubelet(kubelet_dir)
        try:
            plugin = await kubelet.driver()
            for _ in range(2):
                response = (await plugin.call("prepare", [("default", "held", uid)], 45.0)).claims[uid]
                assert not response.error and [device.device_name for device in response.devices] == [GPU]
            assert (await plugin.call("unprepare", [("default", "held", uid)])).claims[uid].error == ""
        finally:
            await kubelet.close()

    asyncio.run(scenario())
    assert agent.end() == 0


def test_saved_conflicts_apply_until_the_server_answers(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path
) -> None:
    fake_api.put("nodes", WITHOUT_PLUGIN)
    state.mkdir()
    save_conflicts(state, SavedConflicts(DeviceConflicts({GPU: "device plugin nvidia.com/gpu"})))
    fault = fake_api.fail(503, times=None, path="/nodes")
    agent = driver().ready()
    agent.wait_for("cannot determine the other drivers")
    assert GPU in load_conflicts(state).conflicts.managers
    fake_api.faults.lift(fault)
    eventually(lambda: GPU in published(fake_api), agent.log_text)
    eventually(lambda: not load_conflicts(state).conflicts, agent.log_text)
    agent.end()
    assert GPU in published(fake_api)


def test_standalone_mode_removes_saved_conflicts(start: Start, state: Path) -> None:
    state.mkdir()
    save_conflicts(state, SavedConflicts(DeviceConflicts({GPU: "device plugin nvidia.com/gpu"})))
    start().ready()
    assert load_conflicts(state) == SavedConflicts()


def test_a_note_about_many_devices_fits_an_event() -> None:
    names = [f"nic-0000-{bus:02x}-00-0" for bus in range(200)]
    note = event_note(ConflictGroup("device plugin rdma/hca_shared_devices_a", names, ""), published=False)
    assert len(note) < 1024 and "200 devices of this node too, which are not published" in note and note.endswith("...")
    assert "is still published by dra-agent: x" in event_note(ConflictGroup("driver y", ["x"], ""), published=True)


def test_the_last_conflicts_are_saved_on_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device(GPU, "gpu", "nvidia", "0000:00:04.0", attributes={})
    hardware = SimpleNamespace(inventory=Inventory(devices=(gpu,)), functions=())
    writing, may_continue = threading.Event(), threading.Event()
    saved: list[SavedConflicts] = []

    def save_slowly(state_dir: Path, conflicts: SavedConflicts) -> None:
        if not writing.is_set():
            writing.set()
            assert may_continue.wait(DEADLINE_S)
        saved.append(conflicts)

    async def scenario() -> None:
        changes: list[bool] = []
        config = Config(node_name="node-a", state_dir=tmp_path, run_dir=tmp_path)
        api: Any = ApiWithoutSlices()
        node_watch = NodeWatch(api, "node-a")
        node_watch.store_list(ObjectList([WITH_PLUGIN], "1"))
        filter_ = ConflictFilter(
            config,
            api,
            node_watch,
            cast(DeviceState, hardware),
            cast(EventRecorder, SimpleNamespace(record=ignore)),
            changed=lambda: changes.append(True),
        )
        filter_.slices.listed([])
        await filter_.start()
        assert await asyncio.to_thread(writing.wait, DEADLINE_S)
        hardware.inventory = Inventory()
        filter_.devices_changed()
        assert len(changes) == 2
        # The pool starts this after a second writer.
        await asyncio.get_running_loop().run_in_executor(None, ignore)
        assert saved == []
        may_continue.set()
        await filter_.stop()
        await asyncio.get_running_loop().shutdown_default_executor()

    monkeypatch.setattr(conflict_filter, "save_conflicts", save_slowly)
    asyncio.run(scenario())
    assert saved[-1] == SavedConflicts()


class ApiWithoutSlices:
    """An API server on which nothing changes."""

    async def list(self, *_: object, **__: object) -> ObjectList:
        return ObjectList([], "1")

    async def watch(self, *_: object, **__: object) -> AsyncGenerator[WatchEvent]:
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", {})


def ignore(*_: object) -> None:
    """An Event sink that discards its input."""
