"""The publisher with a real API server: a control plane without nodes, and devices that the test changes."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import build, prerequisites
from cluster.kube.api import NODES, SLICES, Object
from cluster.kube.cluster_dir import ClusterDir
from cluster.kube.control_plane import ControlPlane
from dra_agent.inventory.api import Capacity, RequestPolicy
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, ConflictError, connect
from dra_agent.publish import Publisher
from eventually import eventually_async
from fake_apiserver.certificates import Authority
from publish.node import DRIVER, NODE, device, devices, partitioned, tainted, wait_until_published

CERTIFICATE_LIFETIME_S = 20
"""Lifetime of a certificate that expires while in use; a busy machine must publish within it."""
GATES = ("DRAPartitionableDevices", "DRAConsumableCapacity")


@contextmanager
def control_plane(gates: Mapping[str, bool]) -> Iterator[ControlPlane]:
    """etcd and an API server with one Node object."""
    try:
        programs = build.programs()
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    cluster_dir = ClusterDir.acquire()
    try:
        cluster_dir.add_addresses()
        created = ControlPlane(cluster_dir, programs, (NODE,), gates)
        try:
            created.etcd.start()
            created.apiserver.start()
            created.ready()
            created.api.create(NODES, {"kind": "Node", "metadata": {"name": NODE}})
            yield created
        finally:
            created.stop()
    finally:
        cluster_dir.clear()
        cluster_dir.release()


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane(build.gates()) as created:
        yield created


@pytest.fixture(scope="module")
def plane_without_gates() -> Iterator[ControlPlane]:
    with control_plane({**dict.fromkeys(GATES, False), **build.without_taints()}) as created:
        yield created


class PublisherNode:
    """The publisher of a node and its objects in the API server."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self.plane = plane
        self.kubeconfig = kubeconfig
        self.inventory = Inventory()
        for item in self.slices():
            plane.api.delete(SLICES, item["metadata"]["name"])

    def set_devices(self, *found: Device) -> None:
        self.inventory = Inventory(devices=found)

    def run(self, scenario: Callable[[Publisher, ApiClient], Awaitable[None]]) -> None:
        async def main() -> None:
            async with connect(self.kubeconfig) as api:
                publisher = Publisher(api, node=NODE, driver=DRIVER, inventory=lambda: self.inventory)
                await publisher.start()
                try:
                    await scenario(publisher, api)
                finally:
                    await publisher.stop()

        asyncio.run(main())

    def publish(self, *found: Device) -> dict[str, int]:
        """Publish until no work is left; return the writes."""
        if found:
            self.set_devices(*found)
        writes: dict[str, int] = {}

        async def scenario(publisher: Publisher, _: ApiClient) -> None:
            await wait_until_published(publisher)
            writes.update({op: count for op, count in publisher.reading().writes.items() if count})

        self.run(scenario)
        return writes

    def slices(self) -> list[Object]:
        found = self.plane.api.list(SLICES, fields={"spec.driver": DRIVER})
        return sorted(found, key=lambda item: item["metadata"]["name"])

    def devices(self) -> dict[str, Object]:
        return {entry["name"]: entry for item in self.slices() for entry in item["spec"].get("devices", ())}

    def wipe(self) -> None:
        """Delete the slices as a kubelet does when it starts."""
        self.plane.api.call("DELETE", f"{SLICES.path(None, None, None)}?fieldSelector=spec.nodeName%3D{NODE}")


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> PublisherNode:
    # A node's own credentials: the Node authorizer lets it read and write its own slices only.
    return PublisherNode(plane, plane.kubeconfig(f"node:{NODE}", tmp_path / "kubeconfig"))


@pytest.fixture
def without_gates(plane_without_gates: ControlPlane, tmp_path: Path) -> PublisherNode:
    return PublisherNode(plane_without_gates, plane_without_gates.kubeconfig("admin", tmp_path / "kubeconfig"))


def test_slices_are_owned_by_the_node_and_adopted_unchanged(site: PublisherNode) -> None:
    tainted_device = tainted(device(100), "a", "b")
    assert site.publish(*devices(90), tainted_device) == {"create": 2}
    before = site.slices()
    owner = site.plane.api.get(NODES, NODE)["metadata"]["uid"]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in before} == {owner}
    assert [item["metadata"]["name"].split("-")[0] for item in before] == ["00000", "00001"]
    assert site.publish() == {}
    assert site.slices() == before
    times = [taint["timeAdded"] for taint in site.devices()[tainted_device.name]["taints"]]
    time.sleep(2.1)
    assert site.publish(*devices(90), tainted(device(100), "a", "b", "c")) == {"update": 1}
    kept = {taint["key"]: taint["timeAdded"] for taint in site.devices()[tainted_device.name]["taints"]}
    assert [kept["x/a"], kept["x/b"]] == times and kept["x/c"] > times[0]


def test_208_devices_take_four_slices_and_one_write_per_change(site: PublisherNode) -> None:
    assert site.publish(*devices(208)) == {"create": 4}
    assert site.publish(*devices(207), tainted(device(207), "sick")) == {"update": 1}
    assert {item["metadata"]["generation"] for item in site.slices()} == {1, 2}
    assert {item["spec"]["pool"]["generation"] for item in site.slices()} == {1}


def test_partitions_are_published_with_their_counters(site: PublisherNode) -> None:
    site.inventory = partitioned()
    assert site.publish() == {"create": 2}
    assert site.publish() == {}
    assert len(site.devices()) == 3


def test_deleted_slices_are_restored_within_two_seconds(site: PublisherNode) -> None:
    site.set_devices(*devices(130))

    async def scenario(publisher: Publisher, _: ApiClient) -> None:
        await wait_until_published(publisher)
        uids = {item["metadata"]["uid"] for item in site.slices()}
        for _attempt in range(3):
            before = time.monotonic()
            await asyncio.to_thread(site.wipe)
            publisher.kubelet_registered()
            await eventually_async(lambda: len(site.devices()) == 130 and len(site.slices()) == 3)
            elapsed = time.monotonic() - before
            assert elapsed < 2.0 * await asyncio.to_thread(site.plane.api.slowdown)
            assert uids.isdisjoint(item["metadata"]["uid"] for item in site.slices())
        await wait_until_published(publisher)
        assert publisher.reading().writes == {"create": 12, "update": 0, "delete": 0}

    site.run(scenario)


def test_no_requests_while_nothing_changes(site: PublisherNode) -> None:
    site.set_devices(*devices(3))

    async def scenario(publisher: Publisher, api: ApiClient) -> None:
        await wait_until_published(publisher)
        await asyncio.sleep(0.5)
        before = dict(api.requests)
        resource_versions = [item["metadata"]["resourceVersion"] for item in site.slices()]
        for _ in range(10):
            publisher.devices_changed()
            publisher.kubelet_registered()
            await asyncio.sleep(0.3)
        assert dict(api.requests) == before
        assert [item["metadata"]["resourceVersion"] for item in site.slices()] == resource_versions

    site.run(scenario)


def test_ended_watches_lose_nothing(site: PublisherNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.WATCH_TIMEOUT_S", (1, 1))
    site.set_devices(device(1))

    async def scenario(publisher: Publisher, api: ApiClient) -> None:
        await wait_until_published(publisher)
        for _ in range(4):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(site.wipe)
            await eventually_async(lambda: len(site.slices()) == 1)
        assert api.requests["GET"] >= 4
        assert publisher.reading().errors == {}

    site.run(scenario)


def test_changes_during_an_apiserver_outage_are_published(site: PublisherNode) -> None:
    site.set_devices(device(1))

    async def scenario(publisher: Publisher, _: ApiClient) -> None:
        await wait_until_published(publisher)
        await asyncio.to_thread(site.plane.apiserver.kill)
        site.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().pending == (f"{NODE}/gpu",))
        await asyncio.sleep(5)
        await asyncio.to_thread(site.plane.apiserver.start)
        await asyncio.to_thread(site.plane.ready)
        back = time.monotonic()
        await eventually_async(lambda: len(site.devices()) == 2)
        print(f"published {time.monotonic() - back:.1f} s after the API server was back")
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    site.run(scenario)


def test_a_publisher_without_leadership_writes_nothing(site: PublisherNode) -> None:
    site.set_devices(device(1))

    async def scenario(publisher: Publisher, api: ApiClient) -> None:
        await wait_until_published(publisher)
        old = Publisher(
            api, node=NODE, driver=DRIVER, inventory=lambda: Inventory(devices=(device(9),)), is_leader=lambda: False
        )
        await old.start()
        await asyncio.sleep(1.5)
        await old.stop()
        assert sum(old.reading().writes.values()) == 0
        assert list(site.devices()) == [device(1).name]

    site.run(scenario)


def test_preconditions_and_dry_runs_of_the_real_apiserver(site: PublisherNode) -> None:
    site.publish(device(1))

    async def scenario(_: Publisher, api: ApiClient) -> None:
        (found,) = (await api.list(RESOURCE_SLICES, fields={"spec.nodeName": NODE})).items
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, name, uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, name, uid=uid, resource_version="1")
        changed = copy.deepcopy(found)
        changed["spec"]["devices"] = []
        response = await api.replace(RESOURCE_SLICES, changed, dry_run=True)
        assert not response["spec"].get("devices")
        assert (await api.get(RESOURCE_SLICES, name)) == found
        changed["metadata"]["resourceVersion"] = "1"
        with pytest.raises(ConflictError):
            await api.replace(RESOURCE_SLICES, changed)

    site.run(scenario)


def test_expired_client_certificate_is_replaced(
    site: PublisherNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = site.plane.keys
    authority = Authority(tmp_path / "pki", keys.authority, keys.authority.with_name("ca.key"))
    credential_files = tmp_path / "agent.crt", tmp_path / "agent.key"

    def install_certificate(valid: timedelta) -> None:
        for created, target in zip(
            authority.issue("agent", valid=valid, organization="system:masters"), credential_files, strict=True
        ):
            created.rename(target)

    install_certificate(timedelta(seconds=CERTIFICATE_LIFETIME_S))
    config = json.loads(site.kubeconfig.read_text())
    config["users"][0]["user"] = {"client-certificate": "agent.crt", "client-key": "agent.key"}
    site.kubeconfig.write_text(json.dumps(config))
    site.set_devices(device(1))

    async def scenario(publisher: Publisher, _: ApiClient) -> None:
        await wait_until_published(publisher)
        await asyncio.sleep(CERTIFICATE_LIFETIME_S + 1)
        site.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: any("has not expired" in problem for problem in publisher.reading().problems))
        install_certificate(timedelta(hours=1))
        await eventually_async(lambda: len(site.devices()) == 2)
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()

    site.run(scenario)


def problems_of(site: PublisherNode) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    async def scenario(publisher: Publisher, _: ApiClient) -> None:
        await wait_until_published(publisher)
        before = [item["metadata"]["resourceVersion"] for item in site.slices()]
        for _attempt in range(3):
            publisher.devices_changed()
            await asyncio.sleep(0.2)
        assert [item["metadata"]["resourceVersion"] for item in site.slices()] == before, "no write loop"
        found.append(publisher.reading().problems)

    site.run(scenario)
    return found[0]


def test_without_the_taints_gate_tainted_devices_are_withheld(without_gates: PublisherNode) -> None:
    without_gates.set_devices(device(1), tainted(device(2), "sick"))
    (problem,) = problems_of(without_gates)
    assert "DRADeviceTaints" in problem
    assert list(without_gates.devices()) == [device(1).name]


def test_without_the_taints_gate_effect_none_is_ignored(without_gates: PublisherNode) -> None:
    without_gates.set_devices(device(1), tainted(device(2), "unmonitored", effect="None"))
    (problem,) = problems_of(without_gates)
    assert "effect None" in problem
    assert list(without_gates.devices()) == [device(1).name, device(2).name]


def test_without_the_partitions_gate_partitions_are_withheld(without_gates: PublisherNode) -> None:
    without_gates.inventory = partitioned()
    (problem,) = problems_of(without_gates)
    assert "DRAPartitionableDevices" in problem
    assert list(without_gates.devices()) == [device(1).name]


def test_without_the_sharing_gate_devices_are_not_shared(without_gates: PublisherNode) -> None:
    shared: Any = {
        "allow_multiple_allocations": True,
        "capacity": {"memory": Capacity("80Gi", request_policy=RequestPolicy(default="1Gi"))},
    }
    original = device(1)
    without_gates.set_devices(Device(**{**{f: getattr(original, f) for f in original.__struct_fields__}, **shared}))
    (problem,) = problems_of(without_gates)
    assert "DRAConsumableCapacity" in problem
    assert "allowMultipleAllocations" not in without_gates.devices()[device(1).name]
