"""The publisher against a real API server: a control plane without nodes, and devices that the test changes."""

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
from cluster.kube.cluster_dir import Place
from cluster.kube.control_plane import ControlPlane
from dra_agent.inventory.api import Capacity, RequestPolicy
from dra_agent.inventory.model import Device, Inventory
from dra_agent.kube_client import RESOURCE_SLICES, ApiClient, ConflictError, connect
from dra_agent.publish import Publisher
from eventually import eventually_async
from fake_apiserver.certificates import Authority
from publish.node import DRIVER, NODE, device, devices, partitioned, settled, tainted

VALID_S = 20
"""Of a certificate that expires while it is used; before that a busy machine has to have published."""
GATES = ("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")


@contextmanager
def control_plane(gates: Mapping[str, bool]) -> Iterator[ControlPlane]:
    """etcd and an API server with one Node object."""
    try:
        programs = build.programs()
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    place = Place.take()
    try:
        place.add_addresses()
        made = ControlPlane(place, programs, (NODE,), gates)
        try:
            made.etcd.start()
            made.apiserver.start()
            made.ready()
            made.api.create(NODES, {"kind": "Node", "metadata": {"name": NODE}})
            yield made
        finally:
            made.stop()
    finally:
        place.clear()
        place.release()


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane({}) as made:
        yield made


@pytest.fixture(scope="module")
def gateless() -> Iterator[ControlPlane]:
    # A rule for taints cannot be without taints.
    with control_plane({**dict.fromkeys(GATES, False), "DRADeviceTaintRules": False}) as made:
        yield made


class Site:
    """A node's publisher and what the API server has of it."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self.plane = plane
        self.kubeconfig = kubeconfig
        self.inventory = Inventory()
        for item in self.slices():
            plane.api.delete(SLICES, item["metadata"]["name"])

    def has(self, *found: Device) -> None:
        self.inventory = Inventory(devices=found)

    def run(self, story: Callable[[Publisher, ApiClient], Awaitable[None]]) -> None:
        async def main() -> None:
            async with connect(self.kubeconfig) as api:
                publisher = Publisher(api, node=NODE, driver=DRIVER, inventory=lambda: self.inventory)
                await publisher.start()
                try:
                    await story(publisher, api)
                finally:
                    await publisher.stop()

        asyncio.run(main())

    def publish(self, *found: Device) -> dict[str, int]:
        """Publish until nothing is left to do; give the writes."""
        if found:
            self.has(*found)
        writes: dict[str, int] = {}

        async def story(publisher: Publisher, _: ApiClient) -> None:
            await settled(publisher)
            writes.update({op: count for op, count in publisher.reading().writes.items() if count})

        self.run(story)
        return writes

    def slices(self) -> list[Object]:
        found = self.plane.api.list(SLICES, fields={"spec.driver": DRIVER})
        return sorted(found, key=lambda item: item["metadata"]["name"])

    def devices(self) -> dict[str, Object]:
        return {entry["name"]: entry for item in self.slices() for entry in item["spec"].get("devices", ())}

    def wipe(self) -> None:
        """As a kubelet does when it starts."""
        self.plane.api.call("DELETE", f"{SLICES.path(None, None, None)}?fieldSelector=spec.nodeName%3D{NODE}")


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Site:
    # A node's own credentials: the Node authorizer lets it see and write its own slices only.
    return Site(plane, plane.kubeconfig(f"node:{NODE}", tmp_path / "kubeconfig"))


@pytest.fixture
def bare(gateless: ControlPlane, tmp_path: Path) -> Site:
    return Site(gateless, gateless.kubeconfig("admin", tmp_path / "kubeconfig"))


def test_what_is_published_is_owned_by_the_node_and_adopted_byte_for_byte(site: Site) -> None:
    sick = tainted(device(100), "a", "b")
    assert site.publish(*devices(90), sick) == {"create": 2}
    before = site.slices()
    owner = site.plane.api.get(NODES, NODE)["metadata"]["uid"]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in before} == {owner}
    assert [item["metadata"]["name"].split("-")[0] for item in before] == ["00000", "00001"]
    assert site.publish() == {}
    assert site.slices() == before
    times = [taint["timeAdded"] for taint in site.devices()[sick.name]["taints"]]
    time.sleep(2.1)
    assert site.publish(*devices(90), tainted(device(100), "a", "b", "c")) == {"update": 1}
    kept = {taint["key"]: taint["timeAdded"] for taint in site.devices()[sick.name]["taints"]}
    assert [kept["x/a"], kept["x/b"]] == times and kept["x/c"] > times[0]


def test_208_devices_take_four_slices_and_one_change_one_write(site: Site) -> None:
    assert site.publish(*devices(208)) == {"create": 4}
    assert site.publish(*devices(207), tainted(device(207), "sick")) == {"update": 1}
    assert {item["metadata"]["generation"] for item in site.slices()} == {1, 2}
    assert {item["spec"]["pool"]["generation"] for item in site.slices()} == {1}


def test_partitions_are_published_with_their_counters(site: Site) -> None:
    site.inventory = partitioned()
    assert site.publish() == {"create": 2}
    assert site.publish() == {}
    assert len(site.devices()) == 3


def test_slices_that_are_wiped_are_back_within_two_seconds(site: Site) -> None:
    site.has(*devices(130))

    async def story(publisher: Publisher, _: ApiClient) -> None:
        await settled(publisher)
        uids = {item["metadata"]["uid"] for item in site.slices()}
        for _turn in range(3):
            before = time.monotonic()
            await asyncio.to_thread(site.wipe)
            publisher.kubelet_registered()
            await eventually_async(lambda: len(site.devices()) == 130 and len(site.slices()) == 3)
            took = time.monotonic() - before
            assert took < 2.0 * await asyncio.to_thread(site.plane.api.pace)
            assert uids.isdisjoint(item["metadata"]["uid"] for item in site.slices())
        await settled(publisher)
        assert publisher.reading().writes == {"create": 12, "update": 0, "delete": 0}

    site.run(story)


def test_nothing_is_asked_while_nothing_changes(site: Site) -> None:
    site.has(*devices(3))

    async def story(publisher: Publisher, api: ApiClient) -> None:
        await settled(publisher)
        await asyncio.sleep(0.5)
        before = dict(api.requests)
        resource_versions = [item["metadata"]["resourceVersion"] for item in site.slices()]
        for _ in range(10):
            publisher.devices_changed()
            publisher.kubelet_registered()
            await asyncio.sleep(0.3)
        assert dict(api.requests) == before
        assert [item["metadata"]["resourceVersion"] for item in site.slices()] == resource_versions

    site.run(story)


def test_watches_that_end_lose_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.kube_client.client.WATCH_TIMEOUT_S", (1, 1))
    site.has(device(1))

    async def story(publisher: Publisher, api: ApiClient) -> None:
        await settled(publisher)
        for _ in range(4):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(site.wipe)
            await eventually_async(lambda: len(site.slices()) == 1)
        assert api.requests["GET"] >= 4
        assert publisher.reading().errors == {}

    site.run(story)


def test_an_api_server_that_is_away_is_caught_up_with(site: Site) -> None:
    site.has(device(1))

    async def story(publisher: Publisher, _: ApiClient) -> None:
        await settled(publisher)
        await asyncio.to_thread(site.plane.apiserver.kill)
        site.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().pending == (f"{NODE}/gpu",))
        await asyncio.sleep(5)
        await asyncio.to_thread(site.plane.apiserver.start)
        await asyncio.to_thread(site.plane.ready)
        back = time.monotonic()
        await eventually_async(lambda: len(site.devices()) == 2)
        print(f"published {time.monotonic() - back:.1f} s after the API server was back")
        await settled(publisher)
        assert publisher.reading().problems == ()

    site.run(story)


def test_two_publishers_of_one_node_do_not_fight_when_one_may_not_write(site: Site) -> None:
    site.has(device(1))

    async def story(publisher: Publisher, api: ApiClient) -> None:
        await settled(publisher)
        old = Publisher(
            api, node=NODE, driver=DRIVER, inventory=lambda: Inventory(devices=(device(9),)), is_leader=lambda: False
        )
        await old.start()
        await asyncio.sleep(1.5)
        await old.stop()
        assert sum(old.reading().writes.values()) == 0
        assert list(site.devices()) == [device(1).name]

    site.run(story)


def test_preconditions_and_dry_runs_are_the_real_servers(site: Site) -> None:
    site.publish(device(1))

    async def story(_: Publisher, api: ApiClient) -> None:
        (found,) = (await api.list(RESOURCE_SLICES, fields={"spec.nodeName": NODE})).items
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, name, uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(ConflictError):
            await api.delete(RESOURCE_SLICES, name, uid=uid, resource_version="1")
        changed = copy.deepcopy(found)
        changed["spec"]["devices"] = []
        said = await api.replace(RESOURCE_SLICES, changed, dry_run=True)
        assert not said["spec"].get("devices")
        assert (await api.get(RESOURCE_SLICES, name)) == found
        changed["metadata"]["resourceVersion"] = "1"
        with pytest.raises(ConflictError):
            await api.replace(RESOURCE_SLICES, changed)

    site.run(story)


def test_a_client_certificate_that_expires_is_followed_to_its_successor(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = site.plane.keys
    authority = Authority(tmp_path / "pki", keys.authority, keys.authority.with_name("ca.key"))
    shown = tmp_path / "agent.crt", tmp_path / "agent.key"

    def show(valid: timedelta) -> None:
        for made, place in zip(
            authority.issue("agent", valid=valid, organization="system:masters"), shown, strict=True
        ):
            made.rename(place)

    show(timedelta(seconds=VALID_S))
    config = json.loads(site.kubeconfig.read_text())
    config["users"][0]["user"] = {"client-certificate": "agent.crt", "client-key": "agent.key"}
    site.kubeconfig.write_text(json.dumps(config))
    site.has(device(1))

    async def story(publisher: Publisher, _: ApiClient) -> None:
        await settled(publisher)
        await asyncio.sleep(VALID_S + 1)
        site.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: any("has not expired" in problem for problem in publisher.reading().problems))
        show(timedelta(hours=1))
        await eventually_async(lambda: len(site.devices()) == 2)
        await settled(publisher)
        assert publisher.reading().problems == ()

    site.run(story)


def problems_of(site: Site) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    async def story(publisher: Publisher, _: ApiClient) -> None:
        await settled(publisher)
        before = [item["metadata"]["resourceVersion"] for item in site.slices()]
        for _turn in range(3):
            publisher.devices_changed()
            await asyncio.sleep(0.2)
        assert [item["metadata"]["resourceVersion"] for item in site.slices()] == before, "no loop"
        found.append(publisher.reading().problems)

    site.run(story)
    return found[0]


def test_without_the_gate_for_taints(bare: Site) -> None:
    bare.has(device(1), tainted(device(2), "sick"))
    (problem,) = problems_of(bare)
    assert "DRADeviceTaints" in problem
    assert list(bare.devices()) == [device(1).name]


def test_without_the_gate_for_taints_one_that_keeps_nobody_away_costs_no_device(bare: Site) -> None:
    bare.has(device(1), tainted(device(2), "unmonitored", effect="None"))
    (problem,) = problems_of(bare)
    assert "effect None" in problem
    assert list(bare.devices()) == [device(1).name, device(2).name]


def test_without_the_gate_for_partitions(bare: Site) -> None:
    bare.inventory = partitioned()
    (problem,) = problems_of(bare)
    assert "DRAPartitionableDevices" in problem
    assert list(bare.devices()) == [device(1).name]


def test_without_the_gate_for_sharing(bare: Site) -> None:
    shared: Any = {
        "allow_multiple_allocations": True,
        "capacity": {"memory": Capacity("80Gi", request_policy=RequestPolicy(default="1Gi"))},
    }
    original = device(1)
    bare.has(Device(**{**{f: getattr(original, f) for f in original.__struct_fields__}, **shared}))
    (problem,) = problems_of(bare)
    assert "DRAConsumableCapacity" in problem
    assert "allowMultipleAllocations" not in bare.devices()[device(1).name]
