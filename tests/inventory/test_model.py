from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_agent.inventory.api import Attribute, Capacity, Counter, CounterConsumption, RequestPolicy, Taint, semver
from dra_agent.inventory.model import Device, DeviceNode, Inventory, device_name, pool_name

# The expression that semver.org publishes for version 2.0.0.
OFFICIAL_SEMVER = re.compile(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", "550.54.15"),
        ("580.65.06", "580.65.6"),
        ("9.0", "9.0.0"),
        ("12", "12.0.0"),
        ("v1.2.3", "1.2.3"),
        ("6.12.12.1-rc2", "6.12.12+1-rc2"),
        ("5.15.0-91-generic", "5.15.0-91-generic"),
        ("24.10-2.1.8.0", "24.10.0+2.1.8.0"),
    ],
)
def test_vendor_versions_become_semantic_ones(text: str, version: str) -> None:
    assert semver(text) == version
    assert OFFICIAL_SEMVER.match(version)


@pytest.mark.parametrize("text", ["", "N/A", "Unknown Error", "-1", "abc.1"])
def test_text_without_a_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        semver(text)


@settings(deadline=None)
@given(st.text(max_size=90))
def test_a_version_is_either_refused_or_one_that_the_api_takes(text: str) -> None:
    try:
        attribute = Attribute.of_version(text)
    except ValueError:
        return
    assert attribute.version is not None
    assert OFFICIAL_SEMVER.match(attribute.version)
    assert len(attribute.version) <= 64


@pytest.mark.parametrize(
    ("amount", "quantity"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (80 << 30, "80Gi"),
        (85520809984, "81559Mi"),
        (3 << 60, "3Ei"),
        ((3 << 40) + 512, str((3 << 40) + 512)),
    ],
)
def test_bytes_become_exact_quantities(amount: int, quantity: str) -> None:
    assert Capacity.of_bytes(amount).value == quantity


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_quantity_of_bytes_loses_nothing(amount: int) -> None:
    quantity = re.fullmatch(r"(\d+)(\D*)", Capacity.of_bytes(amount).value)
    assert quantity is not None
    digits, suffix = quantity.groups()
    assert int(digits) << 10 * ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei").index(suffix) == amount


def test_an_attribute_has_exactly_one_value_of_its_type() -> None:
    assert msgspec.to_builtins(Attribute.of(True)) == {"bool": True}
    assert msgspec.to_builtins(Attribute.of(False)) == {"bool": False}
    assert msgspec.to_builtins(Attribute.of(0)) == {"int": 0}
    assert msgspec.to_builtins(Attribute.of("x")) == {"string": "x"}
    assert msgspec.to_builtins(Attribute.of_version("9.0")) == {"version": "9.0.0"}
    assert [Attribute.of(v).value for v in (False, 0, "x")] == [False, 0, "x"]
    with pytest.raises(ValueError, match="exactly one value, not 0"):
        Attribute()
    with pytest.raises(ValueError, match="exactly one value, not 2"):
        Attribute(integer=1, string="1")
    with pytest.raises(ValueError, match="66 bytes"):
        Attribute.of("é" * 33)


def test_a_device_is_written_as_the_api_writes_it() -> None:
    device = Device(
        name="gpu-0000-3b-00-0",
        family="gpu",
        vendor="nvidia",
        pci_address="0000:3b:00.0",
        attributes={"type": Attribute.of("gpu"), "driverVersion": Attribute.of_version("580.65.06")},
        capacity={"memory": Capacity("80Gi", RequestPolicy(default="1Gi", valid_values=("1Gi", "2Gi")))},
        consumes_counters=(CounterConsumption("gpu-0000-3b-00-0", {"memory": Counter("80Gi")}),),
        taints=(Taint(key="dra-agent.internal/unhealthy", effect="NoSchedule", value="xid"),),
        allow_multiple_allocations=True,
        nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "gpu"),),
        identity={"uuid": "GPU-1"},
        numa_node=0,
    )
    assert device.to_api() == {
        "name": "gpu-0000-3b-00-0",
        "attributes": {"type": {"string": "gpu"}, "driverVersion": {"version": "580.65.6"}},
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}}},
        "consumesCounters": [{"counterSet": "gpu-0000-3b-00-0", "counters": {"memory": {"value": "80Gi"}}}],
        "taints": [{"key": "dra-agent.internal/unhealthy", "effect": "NoSchedule", "value": "xid"}],
        "allowMultipleAllocations": True,
    }
    assert msgspec.json.decode(msgspec.json.encode(device), type=Device) == device


def test_devices_are_found_by_the_pool_of_their_family_only() -> None:
    gpu = Device("gpu-0000-3b-00-0", "gpu", "amd", "0000:3b:00.0", {})
    inventory = Inventory(devices=(gpu,))
    assert inventory.lookup(pool_name("n1", "gpu"), gpu.name) is gpu
    assert inventory.lookup("n1/nic", gpu.name) is None
    assert inventory.lookup("n1/gpu", "gpu-0000-3c-00-0") is None
    assert inventory.family("gpu") == (gpu,)
    assert inventory.family("nic") == ()


def test_names_are_labels_made_of_the_address() -> None:
    assert device_name("gpu", "0000:3B:00.0") == "gpu-0000-3b-00-0"
    assert device_name("nic", "10000:e1:1f.7") == "nic-10000-e1-1f-7"
    assert device_name("gpu", "0000:3b:00.0", "mig", "1g.10gb", 4) == "gpu-0000-3b-00-0-mig-1g-10gb-4"
    with pytest.raises(ValueError, match="not a DNS label"):
        Device("gpu_0", "gpu", "amd", "0000:3b:00.0", {})
