"""What the picture of the page shows of a device besides its claims."""

from __future__ import annotations

import msgspec

from dra_agent.inventory.api import Attribute, Taint
from dra_agent.inventory.model import Device, Inventory
from dra_agent.telemetry.control import DeviceValues
from dra_agent.telemetry.model import DeviceSample
from dra_agent.topology.svg_card import DeviceMark
from dra_cluster.cli.ui_host import device_marks

ADDRESS = "0000:01:00.0"
XID = Taint("dra-agent.internal/xid-79", "NoSchedule")


def device(name: str, kind: str, *taints: Taint, address: str = ADDRESS) -> Device:
    return Device(name, "gpu", "nvidia", address, {"type": Attribute.of(kind)}, taints=taints)


def marks(*devices: Device, **ratios: float | None) -> dict[str, DeviceMark]:
    values = {
        name: DeviceValues(name, "gpu", values=DeviceSample(gpu_utilization_ratio=ratio))
        for name, ratio in ratios.items()
    }
    return device_marks(Inventory(devices), values)


def test_a_gpu_has_its_utilization_and_taints() -> None:
    found = marks(device("one", "gpu", XID), device("two", "gpu", address="0000:02:00.0"), one=0.0, two=None)
    assert found[ADDRESS] == DeviceMark(0.0, ("dra-agent.internal/xid-79:NoSchedule",))
    assert found["0000:02:00.0"] == DeviceMark()


def test_a_gpu_has_the_taints_of_its_partitions_but_not_their_utilization() -> None:
    partitions = device("part", "mig", XID), device("other", "mig", XID)
    assert marks(*partitions, part=1.0)[ADDRESS] == DeviceMark(None, ("dra-agent.internal/xid-79:NoSchedule",))
    assert marks(device("whole", "gpu"), *partitions, whole=0.4, part=1.0)[ADDRESS].utilization_ratio == 0.4


def test_a_taint_that_excludes_no_claim_is_not_marked() -> None:
    assert marks(device("one", "gpu", msgspec.structs.replace(XID, effect="None")))[ADDRESS] == DeviceMark()
