"""The count of XIDs of each device: whose they are, and of which devices nothing is known."""

from __future__ import annotations

import msgspec

from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import Device, DeviceEvent, Inventory, device_name

ADDRESS = "0000:3b:00.0"
WHOLE = device_name("gpu", ADDRESS)
PARTS = tuple(device_name("gpu", ADDRESS, "mig", number) for number in (1, 2))


def device(name: str, *, vendor: str = "nvidia", address: str = ADDRESS) -> Device:
    return Device(name=name, family="gpu", vendor=vendor, pci_address=address, attributes={})


def event(cause: str, *devices: str) -> DeviceEvent:
    return DeviceEvent(ADDRESS, cause, cause, devices)


def counts(devices: tuple[Device, ...], *events: DeviceEvent) -> dict[str, int]:
    inventory = Inventory(devices=devices)
    monitor = Monitor(HealthSettings(), "dra-agent.internal")
    monitor.observe(inventory)
    monitor.record_events(events, inventory)
    return monitor.xids


def test_xids_of_programs_count_and_other_events_do_not() -> None:
    assert counts((device(WHOLE),)) == {WHOLE: 0}
    assert counts((device(WHOLE),), event("xid-13"), event("xid-79"), event("ecc"), event("")) == {WHOLE: 2}


def test_an_xid_of_an_instance_is_one_of_its_device() -> None:
    devices = (device(WHOLE), *map(device, PARTS))
    named, several = event("xid-94", PARTS[0]), event("xid-94", *PARTS)
    assert counts(devices, named, several) == {WHOLE: 0, PARTS[0]: 1, PARTS[1]: 0}


def test_an_xid_of_a_gpu_is_not_one_of_its_partitions() -> None:
    assert counts(tuple(map(device, PARTS)), event("xid-63")) == dict.fromkeys(PARTS, 0)


def test_nothing_is_known_of_devices_that_report_no_xids() -> None:
    other = device("gpu-0000-4b-00-0", vendor="amd", address="0000:4b:00.0")
    blind = msgspec.structs.replace(device(WHOLE), health="unmonitored")
    unobserved = msgspec.structs.replace(device(PARTS[0]), observed=False)
    assert counts((other, blind, unobserved), event("xid-79")) == {}
