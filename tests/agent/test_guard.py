"""A real agent on a node on which somebody else gives out the same devices."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.conftest import AgentProcess, Start
from dra_agent.agent import conflict_filter as guard_module
from dra_agent.agent.config import Config
from dra_agent.agent.conflict_filter import ConflictFilter, _note
from dra_agent.agent.device_state import DeviceState
from dra_agent.conflicts import DeviceConflicts, SavedConflicts, load_conflicts, save_conflicts
from dra_agent.inventory import Device
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
WITHOUT = {**WITH_PLUGIN, "status": {"capacity": {"cpu": "8"}}}
OTHERS = {
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
    """Start an agent as a driver of Kubernetes on node-a."""
    credentials = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*flags: str) -> AgentProcess:
        where = ("--kubelet-dir", str(kubelet_dir), "--kubeconfig", str(credentials))
        return start("--no-standalone", *where, "--metrics-address", "127.0.0.1:0", *flags)

    return run


def published(api: FakeApi) -> set[str]:
    slices = [found for found in api.objects("resourceslices") if found["spec"]["driver"] == DRIVER]
    return {device["name"] for found in slices for device in found["spec"].get("devices", ())}


def settled(api: FakeApi, agent: AgentProcess, expected: Callable[[set[str]], bool]) -> set[str]:
    """Wait until what is published is as expected, and stays so."""
    eventually(lambda: expected(published(api)), agent.said)
    time.sleep(0.5)
    assert expected(published(api)), agent.said()
    return published(api)


def devices_command(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_agent", "devices", "--simulate", "vm-1gpu", "--state-dir", str(state)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("node", "others", "manager"),
    [(WITH_PLUGIN, None, "device plugin nvidia.com/gpu"), (WITHOUT, OTHERS, "driver gpu.nvidia.com")],
    ids=["device plugin", "driver"],
)
def test_what_another_manager_gives_out_is_not_published_and_everybody_is_told(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path, node: Any, others: Any, manager: str
) -> None:
    fake_api.put("nodes", node)
    if others is not None:
        fake_api.put("resourceslices", others)
    agent = driver("--config", str(with_nics(state))).ready()
    assert GPU not in settled(fake_api, agent, lambda names: any(name.startswith("nic-") for name in names))
    agent.wait_for("other drivers advertise devices of this node too")
    fake_api.wait(lambda: any(event["reason"] == "SecondManager" for event in fake_api.objects("events")))
    (event,) = [found for found in fake_api.objects("events") if found["reason"] == "SecondManager"]
    assert event["regarding"]["kind"] == "Node" and event["regarding"]["name"] == "node-a"
    assert (
        event["note"] == f"{manager} advertises 1 device of this node too, which is not published by dra-agent: {GPU}"
    )
    # What was found is written for other processes by a thread that nothing waits for.
    eventually(lambda: manager in load_conflicts(state).verdict.by_manager(), agent.said)
    assert f'dra_agent_second_manager_devices{{manager="{manager}"}} 1.0' in agent.get("/metrics")[1]
    shown = devices_command(state)
    assert GPU not in shown.stdout and f"not published: {GPU}: {manager}" in shown.stderr
    assert agent.end() == 0


def with_nics(state: Path) -> Path:
    """The virtual machine's only NIC is its uplink, and so not published unless asked for."""
    path = state.with_name("config.toml")
    path.write_text('[inventory]\nhost_uplink = "include"\n')
    return path


def test_it_is_published_all_the_same_where_somebody_answers_for_it(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path
) -> None:
    fake_api.put("nodes", WITH_PLUGIN)
    agent = driver("--second-manager", "publish").ready()
    settled(fake_api, agent, lambda names: GPU in names)
    eventually(lambda: load_conflicts(state).published, agent.said)
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
    (found,) = [finding for finding in findings if finding.get("where") == "device plugin nvidia.com/gpu"]
    assert found["severity"] == "problem" and "two pods" in found["what"]
    assert GPU in devices_command(state).stdout
    agent.end()


def test_a_claim_that_holds_such_a_device_goes_on(
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
                answer = (await plugin.call("prepare", [("default", "held", uid)], 45.0)).claims[uid]
                assert not answer.error and [device.device_name for device in answer.devices] == [GPU]
            assert (await plugin.call("unprepare", [("default", "held", uid)])).claims[uid].error == ""
        finally:
            await kubelet.close()

    asyncio.run(scenario())
    assert agent.end() == 0


def test_what_an_earlier_run_found_stands_until_the_server_answers(
    driver: Callable[..., AgentProcess], fake_api: FakeApi, state: Path
) -> None:
    fake_api.put("nodes", WITHOUT)
    state.mkdir()
    save_conflicts(state, SavedConflicts(DeviceConflicts({GPU: "device plugin nvidia.com/gpu"})))
    fault = fake_api.fail(503, times=None, path="/nodes/")
    agent = driver().ready()
    agent.wait_for("cannot determine the other drivers")
    assert GPU in load_conflicts(state).verdict.managers
    fake_api.faults.lift(fault)
    settled(fake_api, agent, lambda names: GPU in names)
    eventually(lambda: not load_conflicts(state).verdict, agent.said)
    agent.end()


def test_without_kubernetes_nobody_else_is_remembered(start: Start, state: Path) -> None:
    state.mkdir()
    save_conflicts(state, SavedConflicts(DeviceConflicts({GPU: "device plugin nvidia.com/gpu"})))
    start().ready()
    assert load_conflicts(state) == SavedConflicts()


def test_a_note_of_many_devices_fits_into_an_event() -> None:
    names = [f"nic-0000-{bus:02x}-00-0" for bus in range(200)]
    note = _note("device plugin rdma/hca_shared_devices_a", names, published=False)
    assert len(note) < 1024 and "200 devices of this node too, which are not published" in note and note.endswith("...")
    assert "is published by dra-agent all the same: x" in _note("driver y", ["x"], published=True)


def test_what_was_found_last_is_remembered_however_slow_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Device(GPU, "gpu", "nvidia", "0000:00:04.0", attributes={})
    hardware = SimpleNamespace(inventory=SimpleNamespace(devices=(gpu,)))
    began, go_on = threading.Event(), threading.Event()
    kept: list[SavedConflicts] = []

    def slowly(state_dir: Path, found: SavedConflicts) -> None:
        if not began.is_set():
            began.set()
            assert go_on.wait(DEADLINE_S)
        kept.append(found)

    class Server:
        async def get(self, kind: Any, name: str) -> dict[str, Any]:
            return WITH_PLUGIN

        async def list(self, kind: Any, *, fields: dict[str, str]) -> Any:
            return SimpleNamespace(items=[])

    async def story() -> None:
        changed: list[bool] = []
        config = Config(node_name="node-a", state_dir=tmp_path, run_dir=tmp_path)
        guard = ConflictFilter(
            config,
            Server(),
            cast(DeviceState, hardware),
            SimpleNamespace(record=ignore),
            changed=lambda: changed.append(True),
        )
        await guard.start()
        assert await asyncio.to_thread(began.wait, DEADLINE_S)
        hardware.inventory.devices = ()
        guard.devices_changed()
        assert len(changed) == 2
        await asyncio.sleep(0.1)  # longer than a second writer would need
        go_on.set()
        await guard.stop()
        await asyncio.get_running_loop().shutdown_default_executor()

    monkeypatch.setattr(guard_module, "save_conflicts", slowly)
    asyncio.run(story())
    assert kept[-1] == SavedConflicts()


def ignore(*_: object) -> None:
    """An Event that nobody reads."""
