"""`pools = "product"`: the devices of a pool are alike, as Cluster Autoscaler expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.pool_groups import PoolGroups
from dra_agent.inventory.settings import InventorySettings
from dra_agent.slices import desired_slices
from dra_agent.topology import scan
from dra_agent.topology.model import Topology
from dra_cluster.template import unlike_devices
from publish.node import partitioned

NODE = "n1"
EMPTY = Topology((), ())
BY_PRODUCT = InventorySettings(pools="product")


def slices(inventory: Inventory) -> list[dict[str, Any]]:
    return desired_slices(inventory, node=NODE, driver="dra-agent.internal", naming="fixed").slices


def names(published: list[dict[str, Any]]) -> list[str]:
    return sorted(device["name"] for one in published for device in one["spec"].get("devices", ()))


def inventory_of(profile: str, directory: Path, settings: InventorySettings) -> Inventory:
    host = dra_simulate.build(profile, directory / profile)
    return collect(host, scan(host), settings)


def test_the_devices_of_a_pool_are_alike(tmp_path: Path) -> None:
    family = slices(inventory_of("mixed", tmp_path, InventorySettings()))
    assert set(unlike_devices(family)) == {"gpu", "nic", "fpga"}, "the host has several products of a family"
    product = slices(inventory_of("mixed", tmp_path, BY_PRODUCT))
    assert unlike_devices(product) == {}
    pools = {one["spec"]["pool"]["name"] for one in product}
    assert {"n1/nvidia-a100-80gb-pcie/gpu", "n1/amd-instinct-mi210/gpu", "n1/broadcom-0x16d7/nic"} < pools
    assert names(product) == names(family)


@pytest.mark.parametrize("profile", ["mixed", "mi300x", "dgx-h100", "azure-ndv5"])
def test_names_of_slices_are_unique(profile: str, tmp_path: Path) -> None:
    found = [one["metadata"]["name"] for one in slices(inventory_of(profile, tmp_path, BY_PRODUCT))]
    assert len(found) == len(set(found))


def test_partitions_are_in_the_pool_of_their_device_with_its_counters() -> None:
    one, other = (partitioned(number) for number in (1, 2))
    products = {"0000:01:00.0": "A100", "0000:02:00.0": "H200"}
    named = [
        msgspec.structs.replace(device, attributes={"productName": Attribute.of(products[device.pci_address])})
        for device in (*one.devices, *other.devices)
    ]
    sets = (*one.counter_sets["gpu"], *other.counter_sets["gpu"])
    inventory = Inventory(devices=PoolGroups().apply(named, EMPTY), counter_sets={"gpu": sets})
    found = [(pool.group, len(pool.devices), [one.name for one in pool.counter_sets]) for pool in inventory.pools()]
    assert found == [("a100", 3, ["gpu-1"]), ("h200", 3, ["gpu-2"])]
    desired = desired_slices(inventory, node=NODE, driver="dra-agent.internal")
    assert not desired.problems, "every counter set is in the pool of the devices that consume it"


def gpu(product: str | None) -> Device:
    attributes = {} if product is None else {"productName": Attribute.of(product)}
    return Device("gpu-0000-01-00-0", "gpu", "nvidia", "0000:01:00.0", attributes)


@pytest.mark.parametrize(
    ("product", "group"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("../../x/gpu", "x-gpu"),
        ("…", "unknown"),
        ("A" * 62 + " B", "a" * 62),
        (None, "nvidia"),
    ],
)
def test_a_group_is_a_dns_label(product: str | None, group: str) -> None:
    (device,) = PoolGroups().apply([gpu(product)], EMPTY)
    assert (device.pool_group, device.pool(NODE)) == (group, f"{NODE}/{group}/gpu")
    assert Inventory(devices=(device,)).lookup(device.pool(NODE), device.name) is device


def test_a_device_that_did_not_change_stays_the_same_object() -> None:
    groups, device = PoolGroups(), gpu("L4")
    (first,), (again,) = groups.apply([device], EMPTY), groups.apply([device], EMPTY)
    assert first is again
    (other,) = groups.apply([gpu("L4")], EMPTY)
    assert other == first and other is not first
