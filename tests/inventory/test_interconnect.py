"""Groups of GPUs with NVLink or XGMI: of graphs, of simulated hosts, of recordings, and while links fail."""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import KfdReader
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.interconnect import Interconnect, group_gpus, pair
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.passthrough import VfioBinding, VfioBindingStore
from dra_agent.inventory.settings import InventorySettings, PartitionRule, PassthroughRule
from dra_agent.topology import scan
from dra_simulate import inject
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.profiles import load_profile
from dra_simulate.tree import replace_file
from eventually import DEADLINE_S
from inventory.hurry import hurry

SETTINGS = InventorySettings(nvml_timeout=DEADLINE_S)
ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in range(8)]
UNKNOWN = 999
LINKS = range(18)


def linked(*pairs: tuple[int, int], width: int | None = 1) -> dict[tuple[str, str], int | None]:
    return {pair(ADDRESSES[one], ADDRESSES[other]): width for one, other in pairs}


def members(groups: dict[str, Interconnect]) -> set[frozenset[int]]:
    found = defaultdict(set)
    for address, interconnect in groups.items():
        found[interconnect.group].add(ADDRESSES.index(address))
    return {frozenset(group) for group in found.values()}


def test_gpus_that_are_all_linked_are_one_group_with_the_least_width() -> None:
    links = {**linked((0, 1), width=6), **linked((0, 2), (1, 2), width=4)}
    groups = group_gpus(links)
    assert members(groups) == {frozenset({0, 1, 2})}
    assert set(groups.values()) == {Interconnect(ADDRESSES[0], 4)}
    assert group_gpus({**links, **linked((0, 2), width=None)})[ADDRESSES[1]].width is None


def test_a_hybrid_cube_mesh_is_two_groups_of_four() -> None:
    """A DGX-1: each GPU is linked to the three of its half, and to one of the other half."""
    halves = [*itertools.combinations(range(4), 2), *itertools.combinations(range(4, 8), 2)]
    groups = group_gpus(linked(*halves, (0, 4), (1, 5), (2, 6), (3, 7)))
    assert members(groups) == {frozenset(range(4)), frozenset(range(4, 8))}


def test_a_gpu_without_a_linked_one_has_no_group() -> None:
    assert group_gpus({}) == {}
    # 0 and 1 are a group, and 2 is linked to only one of them.
    assert members(group_gpus(linked((0, 1), (1, 2)))) == {frozenset({0, 1})}


@given(st.sets(st.sampled_from(list(itertools.combinations(range(8), 2)))))
def test_gpus_that_are_not_linked_are_never_in_one_group(pairs: set[tuple[int, int]]) -> None:
    links = linked(*pairs)
    groups = members(group_gpus(links))
    for group in groups:
        assert len(group) > 1
        assert all(both in pairs for both in itertools.combinations(sorted(group), 2))
    assert group_gpus(dict(reversed(links.items()))) == group_gpus(links), "in the order of addresses only"


def grouped(inventory: Inventory) -> list[tuple[int, int | None]]:
    """Return the size and the width of each group, in the order of the first GPU."""
    found: dict[str, list[Device]] = defaultdict(list)
    for device in inventory.family("gpu"):
        if (group := device.attributes.get("interconnectGroup")) is not None:
            found[str(group.value)].append(device)
    for name, devices in found.items():
        assert name == devices[0].pci_address
    return [(len(devices), width_of(devices)) for devices in found.values()]


def width_of(devices: list[Device]) -> int | None:
    (width,) = {device.attributes.get("interconnectWidth") for device in devices}
    return None if width is None else int(str(width.value))


@pytest.mark.parametrize(
    ("profile", "groups"),
    [
        pytest.param("dgx-h100", [(8, 18)], id="eight GPUs and switches"),
        pytest.param("dgx-2", [(16, 6)], id="two boards of switches"),
        pytest.param("gb200-nvl", [(4, 18)], id="switches in another chassis"),
        pytest.param("b200", [(8, 18)], id="switches without a PCI function"),
        pytest.param("h100-nvl", [(2, 12), (2, 12)], id="bridged pairs"),
        pytest.param("l40s", [], id="no links"),
        pytest.param("vm-1gpu", [], id="one GPU"),
        pytest.param("mi210", [(4, 1), (4, 1)], id="two hives"),
        pytest.param("mi300x", [(8, 1)], id="one hive"),
        pytest.param("flex170", [], id="Intel"),
    ],
)
def test_groups_of_simulated_hosts(profile: str, groups: list[tuple[int, int | None]], tmp_path: Path) -> None:
    host = dra_simulate.build(profile, tmp_path / "host")
    assert grouped(collect(host, scan(host), SETTINGS)) == groups


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return dra_simulate.build("dgx-h100", tmp_path_factory.mktemp("host") / "dgx")


@pytest.fixture
def take(dgx: Host) -> Iterator[Callable[[], Inventory]]:
    """Take the inventory of the host again; afterwards its links are up and its library works."""
    collector = Collector(dgx, SETTINGS)
    yield lambda: collector.collect(scan(dgx))
    inject.clear(dgx.sysfs.parent)
    for number in range(8):
        inject.nvlinks(dgx.sysfs.parent, str(number), ())
    collector.close()


def test_links_that_fail_change_the_group_at_the_next_scan(dgx: Host, take: Callable[[], Inventory]) -> None:
    root = dgx.sysfs.parent
    assert grouped(take()) == [(8, 18)]
    inject.nvlinks(root, "3", [4])
    assert grouped(take()) == [(8, 17)]
    inject.nvlinks(root, "0", LINKS)
    without_first = take()
    assert grouped(without_first) == [(7, 17)]
    assert "interconnectGroup" not in without_first.family("gpu")[0].attributes
    inject.nvlinks(root, "0", ())
    inject.nvlinks(root, "3", ())
    assert grouped(take()) == [(8, 18)]


def test_a_gpu_that_a_claim_binds_to_vfio_pci_changes_no_group_of_others(dgx: Host, tmp_path: Path) -> None:
    (address, *_) = [one.pci_address for one in scan(dgx).devices if one.driver == "nvidia"]
    rule = PassthroughRule(f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"')
    settings = msgspec.structs.replace(SETTINGS, passthrough=(rule,))
    bindings = VfioBindingStore(tmp_path)
    collector = Collector(dgx, settings, bindings=bindings)
    try:
        before = collector.collect(scan(dgx))
        (passed, *others) = before.family("gpu")
        assert not {"interconnectGroup", "interconnectWidth"} & passed.attributes.keys(), "only its driver knows links"
        assert {str(one.attributes["interconnectGroup"].value) for one in others} == {address} and len(others) == 7
        bindings.write(VfioBinding(address, "uid", "key", "nvidia", None, passed))
        after = collector.collect(scan(dgx))
    finally:
        collector.close()
    assert [one.to_api() for one in after.devices] == [one.to_api() for one in before.devices]


def test_links_without_a_route_are_not_a_group(dgx: Host, take: Callable[[], Inventory]) -> None:
    """The fabric manager has not programmed the switches: links are up, and no GPU reaches another one."""
    inject.fail(dgx.sysfs.parent, "nvmlDeviceGetP2PStatus", UNKNOWN)
    assert grouped(take()) == []


def test_what_cannot_be_read_is_not_guessed(dgx: Host, take: Callable[[], Inventory]) -> None:
    root = dgx.sysfs.parent
    assert grouped(take()) == [(8, 18)]
    inject.fail(root, "nvmlDeviceGetNvLinkState", UNKNOWN, "2")
    inventory = take()
    assert grouped(inventory) == [(7, 18)]
    third = inventory.family("gpu")[2]
    assert "interconnectGroup" not in third.attributes and third.health == "healthy"
    assert [problem.where for problem in inventory.problems] == [third.pci_address]


def test_a_library_that_hangs_changes_no_group(
    dgx: Host, take: Callable[[], Inventory], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [device.pci_address for device in take().family("gpu")][:3]
    for number in range(len(first)):
        inject.hang(dgx.sysfs.parent, "nvmlDeviceGetNvLinkState", str(number))
    waited = hurry(monkeypatch, lambda lane: lane in first)
    inventory = take()
    assert grouped(inventory) == [(8, 18)]
    assert waited == first[:2], "the links of the others are not waited for"
    assert [problem.where for problem in inventory.problems] == first[:2]


def test_a_library_without_the_calls_costs_only_the_groups(dgx: Host, take: Callable[[], Inventory]) -> None:
    inject.fail(dgx.sysfs.parent, "nvmlDeviceGetNvLinkRemoteDeviceType", 13)
    inject.fail(dgx.sysfs.parent, "nvmlDeviceGetNvLinkRemotePciInfo_v2", 13)
    inventory = take()
    assert grouped(inventory) == [] and inventory.problems == ()


def test_instances_of_a_gpu_in_mig_mode_have_no_links(tmp_path: Path) -> None:
    host = dra_simulate.build("mixed", tmp_path / "host")
    inventory = collect(host, scan(host), SETTINGS)
    assert [one for one in inventory.family("gpu") if "interconnectGroup" in one.attributes] == []


def test_a_change_of_the_partition_mode_leaves_the_groups_of_other_gpus(tmp_path: Path) -> None:
    """KFD removes the nodes of a GPU before it creates those of the new mode."""
    host = dra_simulate.build("mi300x", tmp_path / "host")
    reader = KfdReader(host)

    def groups() -> set[Interconnect | None]:
        return {node.interconnect for of_gpu in reader.nodes([]).values() for node in of_gpu}

    before = groups()
    assert len(before) == 1
    topology = host.sysfs / "class/kfd/kfd/topology"
    nodes = sorted((topology / "nodes").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(nodes[-1])
    replace_file(topology / "generation_id", b"99\n")
    assert groups() == before and len(reader.nodes([])) == 7


@pytest.mark.parametrize("mode", ["SPX", "CPX"])
def test_gpus_that_claims_divide_have_the_same_group_in_every_mode(mode: str, tmp_path: Path) -> None:
    """KFD shows no number of links of a divided GPU, so none is published."""
    host = dra_simulate.build("mi300x", tmp_path / "host")
    first = host.sysfs / "bus/pci/devices/0000:0c:00.0/current_compute_partition"
    SimulatedKernel(tmp_path / "host", load_profile("mi300x")).write(str(first.relative_to(host.sysfs)), mode)
    rule = PartitionRule('device.attributes["dra-agent.internal"].vendor == "amd"', "amd")
    devices = collect(host, scan(host), msgspec.structs.replace(SETTINGS, partition=(rule,))).family("gpu")
    assert len(devices) == 8 * 15
    assert {str(device.attributes["interconnectGroup"].value) for device in devices} == {"0000:0c:00.0"}
    assert not [device for device in devices if "interconnectWidth" in device.attributes]


def kfd_groups(host: Host) -> list[tuple[int, set[int | None]]]:
    read = KfdReader(host).nodes([])
    found = defaultdict(list)
    for of_gpu in read.values():
        (interconnect,) = {node.interconnect for node in of_gpu}
        if interconnect is not None:
            found[interconnect.group].append(interconnect.width)
    return [(len(widths), set(widths)) for widths in found.values()]


@pytest.mark.parametrize("recorded_host", ["kfd-mi210"], indirect=True)
def test_a_recorded_mi210_host_has_two_groups(recorded_host: Host) -> None:
    assert kfd_groups(recorded_host) == [(4, {1}), (4, {1})]


@pytest.mark.parametrize("recorded_host", ["kfd-mi300-cpx"], indirect=True)
def test_partitions_of_a_recorded_mi300_host_are_in_the_group_of_their_gpus(recorded_host: Host) -> None:
    """KFD reports no bandwidth between partitions of two GPUs, so the width is not known."""
    assert kfd_groups(recorded_host) == [(8, {None})]
