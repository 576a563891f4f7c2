"""AMD GPUs of fleets, as the agent describes the simulated ones: figures of data sheets, and a recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import KfdNode, gpu_nodes
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.topology import scan
from dra_simulate.kernel import SimulatedKernel
from inventory.test_amd_modes import DIVISIBLE

DESCRIBED = ("productName", "brand", "architecture", "computePartition", "memoryPartition")


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    folder = tmp_path_factory.mktemp("profiles")
    return cache(lambda profile: dra_simulate.build(profile, folder / profile))


def gpus(host: Host) -> list[Device]:
    found = collect(host, scan(host))
    assert found.problems == ()
    return list(found.family("gpu"))


@pytest.mark.parametrize(
    ("profile", "count", "described", "units", "memory"),
    [
        ("mi210", 8, ["AMD Instinct MI210", "Instinct", "gfx90a", None, None], "104", "65520Mi"),
        ("mi250x", 8, ["AMD INSTINCT MI250X (MCM) OAM AC MBA", "Instinct", "gfx90a", None, None], "110", "65520Mi"),
        # The limit of TTM, half of the memory of a NUMA node.
        ("mi300a", 4, ["AMD Instinct MI300A", "Instinct", "gfx942", "SPX", "NPS1"], "228", "64424524Ki"),
        ("mi308x", 8, ["AMD Instinct MI308X OAM", "Instinct", "gfx942", "SPX", "NPS1"], "80", "196592Mi"),
        ("mi350x", 8, ["AMD Instinct MI350X OAM", "Instinct", "gfx950", "SPX", "NPS1"], "256", "294896Mi"),
        ("mi355x", 8, ["AMD Instinct MI355X OAM", "Instinct", "gfx950", "SPX", "NPS1"], "256", "294896Mi"),
        ("mi300x-vf", 8, ["AMD Instinct MI300X VF", "Instinct", "gfx942", "SPX", "NPS1"], "304", "196592Mi"),
        ("mi300x-linux-6.18", 8, ["AMD Instinct MI300X OAM", "Instinct", "gfx942", "SPX", "NPS1"], "304", "196592Mi"),
    ],
)
def test_a_gpu_is_described(
    profile: str,
    count: int,
    described: list[str | None],
    units: str,
    memory: str,
    standing: Callable[[str], Host],
) -> None:
    devices = gpus(standing(profile))
    assert len(devices) == count
    for device in devices:
        values = {name: attribute.value for name, attribute in device.attributes.items()}
        assert [values.get(name) for name in DESCRIBED] == described
        assert values["type"] == "gpu"
        assert {name: amount.value for name, amount in device.capacity.items()} == {
            "memory": memory,
            "computeUnits": units,
        }
        assert [node.role for node in device.nodes] == ["kfd", "card", "render"]
    assert len({device.attributes["uuid"].value for device in devices}) == count
    assert len({device.nodes[-1].path for device in devices}) == count


@pytest.mark.parametrize("recorded_host", ["kfd-mi210"], indirect=True)
def test_the_simulated_mi210_host_has_the_compute_topology_of_the_recorded_one(
    recorded_host: Host, standing: Callable[[str], Host]
) -> None:
    def shown(nodes: dict[str, list[KfdNode]]) -> list[tuple[object, ...]]:
        hives = list(dict.fromkeys(node.hive_id for (node,) in nodes.values()))
        return [
            (node.node_id, address, node.render_minor, node.compute_units, node.isa, hives.index(node.hive_id))
            for address, (node,) in nodes.items()
        ]

    assert shown(gpu_nodes(standing("mi210"), [])) == shown(gpu_nodes(recorded_host, []))


@pytest.mark.parametrize("profile", ["mi300a", "mi308x", "mi350x"])
def test_allocatable_devices_do_not_depend_on_the_mode(profile: str, tmp_path: Path) -> None:
    host = dra_simulate.build(profile, tmp_path / "host")
    before = collect(host, scan(host), DIVISIBLE)
    address = before.family("gpu")[0].pci_address
    modes = {str(one.attributes["computePartition"].value) for one in before.family("gpu")}
    assert len(modes) > 2
    for mode in modes:
        SimulatedKernel(tmp_path / "host").write(f"bus/pci/devices/{address}/current_compute_partition", mode)
        after = collect(host, scan(host), DIVISIBLE)
        assert [device.capacity for device in after.devices] == [device.capacity for device in before.devices]
        assert [device.name for device in after.devices] == [device.name for device in before.devices]


def test_partitions_of_an_apu_have_the_memory_that_kfd_gives_them(tmp_path: Path) -> None:
    host = dra_simulate.build("mi300a", tmp_path / "host")
    SimulatedKernel(tmp_path / "host").write("bus/pci/devices/0001:01:00.0/current_compute_partition", "TPX")
    parts = [device for device in gpus(host) if device.attributes["type"].value == "partition"]
    assert [device.name for device in parts] == [f"gpu-0001-01-00-0-tpx-{number}" for number in range(3)]
    assert {device.capacity["computeUnits"].value for device in parts} == {"76"}
    nodes = gpu_nodes(host, [])["0001:01:00.0"]
    assert nodes[0].memory_bytes == 16_106_131 // 3 * 4096
    assert {device.capacity["memory"].value for device in parts} == {f"{16_106_131 // 3 * 4}Ki"}


def test_a_virtual_function_in_a_guest_is_one_gpu_that_is_not_divided(tmp_path: Path) -> None:
    host = dra_simulate.build("mi300x-vf", tmp_path / "host")
    found = collect(host, scan(host), DIVISIBLE)
    assert found.counter_sets == {} and len(found.family("gpu")) == 8
    kernel = SimulatedKernel(tmp_path / "host")
    with pytest.raises(PermissionError):
        kernel.write("bus/pci/devices/0002:00:00.0/current_compute_partition", "CPX")
    renders = [device.nodes[-1].path for device in found.family("gpu")]
    assert renders == [f"/dev/dri/renderD{128 + number}" for number in range(8)]
    assert not (host.sysfs / "devices/platform").exists()


def test_shares_can_be_held_to_their_memory_where_the_kernel_counts_it(standing: Callable[[str], Host]) -> None:
    # amdgpu registers its memory with dmem since Linux 6.14 (amdgpu_vram_mgr_init); AMD's packages for older kernels
    # cannot.
    assert [device.memory_limits for device in gpus(standing("mi355x"))] == [{"dmem": ""}] * 8
    assert all("6.14" in device.memory_limits["dmem"] for device in gpus(standing("mi308x")))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("mi300a", {True}),
        ("mi300x", {False}),
        ("mi300x-vf", {False}),
        ("mi250x", {False}),
        ("dgx-spark", {True}),
        ("dgx-h100", {False}),
        ("gb200-nvl", {False}),
        ("vm-1gpu", {False}),
        ("arc-pro", {False}),
        ("arc-b60", {False}),
        ("strix-halo", {True, False}),
    ],
)
def test_gpus_of_a_processor_are_distinguished_from_cards(
    profile: str, expected: set[bool], standing: Callable[[str], Host]
) -> None:
    assert {device.attributes["integrated"].value for device in gpus(standing(profile))} == expected


def test_a_desktop_with_an_apu_and_a_card_in_an_enclosure(standing: Callable[[str], Host]) -> None:
    external, apu = gpus(standing("strix-halo"))
    assert (external.pci_address, external.attributes["external"].value) == ("0000:65:00.0", True)
    assert (external.capacity["memory"].value, external.attributes["integrated"].value) == ("32624Mi", False)
    assert "external" not in apu.attributes
    assert (apu.capacity["memory"].value, apu.attributes["integrated"].value) == ("62Gi", True)
