"""Labels of a Node: which follow from devices, and how they get there and are removed."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from dra_agent import atomic_file
from dra_agent.agent.fabric_labels import fabric_labels
from dra_agent.agent.feature_file import FeatureFile
from dra_agent.agent.leadership import Leadership
from dra_agent.agent.node_labels import NodeLabels, owned_labels
from dra_agent.agent.rolling_update import InstanceRegistry
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.kube_client import connect
from dra_agent.kube_client.node_watch import NodeWatch
from dra_agent.retry import Backoff
from dra_agent.topology import scan
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi

DRIVER = "gpu.example.com"
PREFIX = f"fabric.{DRIVER}/"
DOMAIN = "b7a1b0f0-0000-4000-8000-00000000beef"
FOREIGN = {"kubernetes.io/hostname": "n", "example.com/rack": "r7", "nvidia.com/gpu.clique": "x"}


def gpu(number: int, **attributes: bool | int | str) -> Device:
    values = {name: Attribute.of(value) for name, value in attributes.items()}
    return Device(f"gpu-{number}", "gpu", "nvidia", f"0000:{number:02x}:00.0", values)


def labels_of(*devices: Device, present: dict[str, str] | None = None) -> dict[str, str]:
    found = fabric_labels(Inventory(devices=devices), DRIVER, {PREFIX + k: v for k, v in (present or {}).items()})
    assert all(key.startswith(PREFIX) for key in found)
    return {key.removeprefix(PREFIX): value for key, value in found.items()}


def test_a_label_has_the_value_that_all_devices_agree_on() -> None:
    both = (gpu(0, fabricDomain=DOMAIN, fabricClique=7, rack="r1", leaf="l0"), gpu(1, rack="r1", leaf="l1", spine="s"))
    assert labels_of(*both) == {"domain": DOMAIN, "clique": f"{DOMAIN}.7", "rack": "r1", "spine": "s"}
    other = gpu(2, fabricDomain=DOMAIN, fabricClique=8)
    assert "clique" not in labels_of(*both, other) and labels_of(*both, other)["domain"] == DOMAIN
    assert labels_of() == {}


def test_the_hive_of_one_host_is_not_a_domain() -> None:
    assert labels_of(gpu(0, fabricDomain="af00000000000001")) == {}


@pytest.mark.parametrize("value", ["two words", "-r1", "r" * 64, "r1:2", True])
def test_a_value_that_no_label_can_have_is_left_out(value: str | bool) -> None:
    assert labels_of(gpu(0, rack=value)) == {}


def test_a_label_stays_while_devices_cannot_be_read() -> None:
    blind = msgspec.structs.replace(gpu(0, rack="r1"), observed=False)
    assert labels_of(blind, present={"clique": "c", "rack": "r0"}) == {"clique": "c", "rack": "r1"}
    hung = msgspec.structs.replace(gpu(0), health="unmonitored")
    assert labels_of(hung, present={"clique": "c"}) == {"clique": "c"}
    assert labels_of(gpu(0), present={"clique": "c"}) == {}


def test_hosts_of_one_clique_have_the_same_labels(tmp_path: Path) -> None:
    host = dra_simulate.build("gb200-nvl", tmp_path / "host")
    found = fabric_labels(collect(host, scan(host), InventorySettings(nvml_timeout=DEADLINE_S)), DRIVER, {})
    assert found.keys() == {f"{PREFIX}{name}" for name in ("domain", "clique", "subnet")}
    assert found[f"{PREFIX}clique"] == f"{found[f'{PREFIX}domain']}.32766"
    assert found[f"{PREFIX}subnet"] == "0xfe80000000000000"


def test_only_own_labels_are_ever_considered() -> None:
    node = {
        "metadata": {
            "labels": {**FOREIGN, f"{PREFIX}rack": "mine", f"{PREFIX}leaf": "of NFD"},
            "managedFields": [
                {"manager": "agent", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{PREFIX}rack": {}}}}},
                {"manager": "nfd-master", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{PREFIX}leaf": {}}}}},
                {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
            ],
        }
    }
    assert owned_labels(node, "agent", PREFIX) == {f"{PREFIX}rack": "mine"}
    assert owned_labels({"metadata": {}}, "agent", PREFIX) == {}


class Labeling:
    """A Node in the fake API server, and the devices of its agent."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.devices: tuple[Device, ...] = ()
        self.leads = True
        self.asked = 0

    def is_leader(self) -> bool:
        self.asked += 1
        return self.leads

    def labels(self) -> dict[str, str]:
        (node,) = [one for one in self.api.objects("nodes") if one["metadata"]["name"] == "n"]
        return dict(node["metadata"].get("labels") or {})

    async def have(self, expected: dict[str, str]) -> None:
        await eventually_async(lambda: self.labels() == {**FOREIGN, **expected})


Scenario = Callable[[Labeling, NodeLabels], Awaitable[None]]


@pytest.fixture
def run(fake_api: FakeApi, tmp_path: Path) -> Callable[..., Labeling]:
    """Run a scenario with the labels of node n."""
    fake_api.put("nodes", node())

    def run_(scenario: Scenario, *, is_wanted: bool = True) -> Labeling:
        labeling = Labeling(fake_api)

        async def main() -> None:
            async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
                watch = NodeWatch(api, "n", backoff=Backoff(first=0.01, longest=0.1))
                following = asyncio.create_task(watch.run())
                labels = NodeLabels(
                    api,
                    watch,
                    node="n",
                    driver=DRIVER,
                    is_wanted=is_wanted,
                    inventory=lambda: Inventory(devices=labeling.devices),
                    is_leader=labeling.is_leader,
                )
                labels.start()
                try:
                    await scenario(labeling, labels)
                finally:
                    await labels.stop()
                    following.cancel()
                    with suppress(asyncio.CancelledError):
                        await following

        asyncio.run(main())
        return labeling

    return run_


def node(**labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {**FOREIGN, **labels}}}


def test_labels_follow_the_devices_and_leave_all_others(run: Callable[..., Labeling], fake_api: FakeApi) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.devices = (gpu(0, fabricDomain=DOMAIN, fabricClique=7, rack="r1"),)
        labels.check()
        await labeling.have({f"{PREFIX}domain": DOMAIN, f"{PREFIX}clique": f"{DOMAIN}.7", f"{PREFIX}rack": "r1"})
        labeling.devices = (gpu(0, fabricDomain=DOMAIN, fabricClique=8),)
        labels.check()
        await labeling.have({f"{PREFIX}domain": DOMAIN, f"{PREFIX}clique": f"{DOMAIN}.8"})
        labeling.devices = ()
        labels.check()
        await labeling.have({})

    run(scenario)
    assert len(fake_api.writes()) == 3
    assert {request.query["fieldManager"] for request in fake_api.writes()} == {f"{DRIVER}-fabric"}


def test_labels_that_are_lost_are_written_again(run: Callable[..., Labeling], fake_api: FakeApi) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        for _ in range(2):
            await labeling.have({f"{PREFIX}rack": "r1"})
            # A Node that the kubelet has created again, or an operator's edit.
            fake_api.put("nodes", node())

        await labeling.have({f"{PREFIX}rack": "r1"})

    run(scenario)


def test_labels_that_are_lost_before_the_response_of_their_write_are_written_again(
    run: Callable[..., Labeling], fake_api: FakeApi
) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        fake_api.late(1.0, methods="PATCH")
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        await labeling.have({f"{PREFIX}rack": "r1"})
        fake_api.put("nodes", node())
        await labeling.have({f"{PREFIX}rack": "r1"})

    run(scenario)


def test_without_the_option_labels_of_an_earlier_run_are_removed(
    run: Callable[..., Labeling], fake_api: FakeApi
) -> None:
    async def write(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        await labeling.have({f"{PREFIX}rack": "r1"})

    async def removed(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.devices = (gpu(0, rack="r1"),)
        await labeling.have({})

    run(write)
    run(removed, is_wanted=False)


def test_an_agent_without_the_option_writes_nothing(run: Callable[..., Labeling], fake_api: FakeApi) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        fake_api.put("nodes", node(**{"example.com/new": "x"}))
        await eventually_async(lambda: len([one for one in fake_api.requests if one.query.get("watch")]) > 0)

    run(scenario, is_wanted=False)
    assert fake_api.writes() == []


def test_only_the_leader_of_a_rolling_update_writes(run: Callable[..., Labeling], fake_api: FakeApi) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        labeling.leads = False
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        await eventually_async(lambda: labeling.asked > 0)
        labeling.devices = (gpu(0, rack="r2"),)
        labeling.leads = True
        labels.check()
        await labeling.have({f"{PREFIX}rack": "r2"})

    run(scenario)
    assert len(fake_api.writes()) == 1


def test_a_refusal_is_logged_once_with_the_missing_permission(
    run: Callable[..., Labeling], fake_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        fake_api.fail(403, methods="PATCH", times=1)
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        await eventually_async(lambda: bool(fake_api.writes()))
        labeling.devices = (gpu(0, rack="r2"),)
        labels.check()
        await labeling.have({f"{PREFIX}rack": "r2"})

    run(scenario)
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert vars(record)["grant"] == "nodeLabels of the chart"


def test_a_permission_that_takes_effect_late_needs_no_change(
    run: Callable[..., Labeling], fake_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server learns of a new role or policy after the agent has started."""

    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        fake_api.fail(403, methods="PATCH", times=2)
        labeling.devices = (gpu(0, rack="r1"),)
        labels.check()
        await labeling.have({f"{PREFIX}rack": "r1"})

    run(scenario)
    assert len(fake_api.writes()) == 3
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1


def test_labels_that_may_not_be_removed_can_be_removed_by_hand(
    run: Callable[..., Labeling], fake_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(labeling: Labeling, labels: NodeLabels) -> None:
        fake_api.fail(403, methods="PATCH", times=None)
        fake_api.put("nodes", node(**{f"{PREFIX}rack": "r1"}))
        await eventually_async(lambda: bool(errors()))

    def errors() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.levelname == "ERROR"]

    run(scenario, is_wanted=False)
    (record,) = errors()
    assert f"kubectl label node n {PREFIX}rack-" in str(vars(record)["todo"])


@pytest.fixture
def feature_file(tmp_path: Path) -> Callable[..., Path]:
    """Run a feature file of these devices until it has this text; None: it does not exist."""
    path = tmp_path / f"dra-agent-{DRIVER}"

    def text() -> str | None:
        return path.read_bytes().decode(errors="replace") if path.exists() else None

    def run_(*devices: Device, expected: str | None, is_wanted: bool = True) -> Path:
        async def main() -> None:
            file = FeatureFile(
                tmp_path,
                driver=DRIVER,
                is_wanted=is_wanted,
                inventory=lambda: Inventory(devices=devices),
                is_leader=lambda: True,
            )
            file.start()
            try:
                await eventually_async(lambda: text() == expected)
            finally:
                await file.stop()

        asyncio.run(main())
        return path

    return run_


def test_a_feature_file_has_the_labels_and_is_removed_without_the_option(feature_file: Callable[..., Path]) -> None:
    device = gpu(0, fabricDomain=DOMAIN, fabricClique=7, rack="r1")
    path = feature_file(device, expected=f"{PREFIX}clique={DOMAIN}.7\n{PREFIX}domain={DOMAIN}\n{PREFIX}rack=r1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == [path.name], "NFD's worker sees no half of a file"
    # The library has just been started again.
    blind = msgspec.structs.replace(gpu(0, rack="r2"), observed=False)
    feature_file(blind, expected=f"{PREFIX}clique={DOMAIN}.7\n{PREFIX}domain={DOMAIN}\n{PREFIX}rack=r2\n")
    feature_file(device, expected=None, is_wanted=False)


def test_a_feature_file_that_cannot_be_written_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory is mounted, or NFD's worker creates it, after the agent starts; no device changes."""
    folder = tmp_path / "features.d"

    async def main() -> None:
        inventory = Inventory(devices=(gpu(0, rack="r1"),))
        file = FeatureFile(folder, driver=DRIVER, is_wanted=True, inventory=lambda: inventory, is_leader=lambda: True)
        file.start()
        try:
            await eventually_async(lambda: bool(caplog.records))
            folder.mkdir()
            await eventually_async(lambda: (folder / f"dra-agent-{DRIVER}").exists())
        finally:
            await file.stop()

    asyncio.run(main())
    (record,) = caplog.records
    assert record.levelname == "ERROR" and "mount the directory" in str(vars(record)["todo"])


@pytest.mark.parametrize("limit_s", [DEADLINE_S, 0.0], ids=["a slow disk", "a disk that hangs"])
def test_a_feature_file_does_not_change_after_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    """The write is on a thread, which waits for the disk."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write_all(handle: int, data: bytes) -> None:
        begun.set()
        may_end.wait(DEADLINE_S)
        os.write(handle, data)

    def write(*args: Any, **options: Any) -> None:
        atomic_write(*args, **options)
        ended.set()

    atomic_write = atomic_file.write
    monkeypatch.setattr("dra_agent.atomic_file.write_all", write_all)
    monkeypatch.setattr("dra_agent.atomic_file.write", write)
    monkeypatch.setattr("dra_agent.agent.feature_file.END_TIMEOUT_S", limit_s)

    async def main() -> list[Path]:
        inventory = Inventory(devices=(gpu(0, rack="r1"),))
        file = FeatureFile(tmp_path, driver=DRIVER, is_wanted=True, inventory=lambda: inventory, is_leader=lambda: True)
        file.start()
        await eventually_async(begun.is_set)
        stop = asyncio.create_task(file.stop())
        if limit_s:
            asyncio.get_running_loop().call_soon(may_end.set)
        await stop
        assert ended.is_set() == bool(limit_s)
        at_stop = list(tmp_path.glob("dra-agent-*"))
        may_end.set()
        await eventually_async(ended.is_set)
        assert list(tmp_path.glob("dra-agent-*")) == at_stop
        return list(tmp_path.iterdir())

    assert asyncio.run(main()) == [], "a write that was not wanted any more leaves nothing"


def test_a_feature_file_that_was_not_completed_is_removed(feature_file: Callable[..., Path], tmp_path: Path) -> None:
    """The agent was killed while it wrote."""
    leftover = tmp_path / f".dra-agent-{DRIVER}.{'0' * 16}.tmp"
    other = tmp_path / f".dra-agent-other.example.com.{'0' * 16}.tmp"
    for path in (leftover, other):
        path.write_text("fabric.")
    feature_file(gpu(0, rack="r1"), expected=f"{PREFIX}rack=r1\n")
    assert not leftover.exists() and other.exists()


def test_a_feature_file_with_other_contents_is_replaced(feature_file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / f"dra-agent-{DRIVER}").write_bytes(b"\xff\x00example.com/other=x\n=\n")
    feature_file(gpu(0, rack="r1"), expected=f"{PREFIX}rack=r1\n")


def test_the_feature_file_of_a_leader_of_a_moment_is_replaced(tmp_path: Path) -> None:
    """The other agent, whose labels differ, stops in order before this one checks again which of them leads."""
    folder, state = tmp_path / "features.d", tmp_path / "state"
    folder.mkdir()
    inventory = Inventory(devices=(gpu(0, rack="r1"),))

    async def main() -> None:
        instances = InstanceRegistry(state, "first")
        leadership = Leadership(instances)
        leadership.report_able(True)
        file = FeatureFile(
            folder, driver=DRIVER, is_wanted=True, inventory=lambda: inventory, is_leader=leadership.is_leader
        )
        leadership.watch(lambda leads: file.check() if leads else None)
        file.start()
        (path,) = await eventually_async(lambda: list(folder.glob(f"dra-agent-{DRIVER}")))

        other = InstanceRegistry(state, "other")
        its_leadership = Leadership(other)
        its_leadership.report_able(True)
        assert its_leadership.is_leader()
        path.write_text(f"{PREFIX}rack=r2\n")
        its_leadership.resign()
        other.close()
        await eventually_async(lambda: path.read_text() == f"{PREFIX}rack=r1\n")
        await file.stop()
        instances.close()

    asyncio.run(main())
