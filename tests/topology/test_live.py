"""The Python API: snapshots, events, rescans, the socket and error messages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.topology import DeviceKind, LiveTopology, PciFunction, TopologyChange, Uevent, UeventSocket, scan
from eventually import eventually

FIELDS = {
    "pci_address", "kind", "class", "vendor_id", "device_id", "driver",
    "numa_node", "numa_source", "pcie_root", "parents",
}  # fmt: skip

NETLINK_KOBJECT_UEVENT = 15
"""From linux/netlink.h; the socket module of Python does not define it."""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A small host, one for each test because tests change it."""
    return dra_simulate.build("vm-1gpu", tmp_path / "host")


def device_folder(host: Host, device: PciFunction) -> Path:
    """The folder of a device below the sysfs root."""
    return (host.sysfs / "bus/pci/devices" / device.pci_address).resolve()


def unplug(host: Host, device: PciFunction) -> Uevent:
    folder = device_folder(host, device)
    shutil.rmtree(folder)
    (host.sysfs / "bus/pci/devices" / device.pci_address).unlink()
    return Uevent("remove", f"/{folder.relative_to(host.sysfs)}", "pci")


def test_a_simulated_dgx_has_the_real_topology(tmp_path: Path) -> None:
    topology = scan(dra_simulate.build("dgx-h100", tmp_path / "host"), distances=True)
    gpus = [device for device in topology.relevant if device.kind is DeviceKind.GPU]
    assert topology.problems == ()
    assert len(gpus) == 8
    assert {gpu.numa_node for gpu in gpus} == {0, 1}
    for gpu in gpus:
        assert any(nic.kind is DeviceKind.NIC and nic.pcie_switch == gpu.pcie_switch for nic in topology.relevant)
        assert gpu.driver == "nvidia"
    assert len(topology.distances) == len(topology.relevant) * (len(topology.relevant) - 1) // 2
    first, second = gpus[:2]
    assert topology.distance(first.pci_address, second.pci_address) is not None
    assert topology.distance(first.pci_address, second.pci_address) == topology.distance(
        second.pci_address, first.pci_address
    )
    assert topology.distance(first.pci_address, first.pci_address) is None


def test_distances_are_computed_on_request_only(tmp_path: Path) -> None:
    """Their number grows with the square of the devices, so a uevent must not compute them."""
    live = LiveTopology(dra_simulate.build("dgx-h100", tmp_path / "host"))
    snapshot, whole = live.snapshot(), live.snapshot(distances=True)
    assert snapshot.distances == {} and snapshot.devices == whole.devices and snapshot.problems == whole.problems
    for pair, distance in whole.distances.items():
        one, other = pair.split(",")
        assert live.distance(one, other) is live.distance(other, one) is distance
    first = whole.relevant[0].pci_address
    assert live.distance(first, first) is None and live.distance(first, "0000:ff:1f.7") is None
    assert live.distance(first, "nonsense") is None
    with pytest.raises(ValueError, match="without distances"):
        snapshot.distance(*(device.pci_address for device in whole.relevant[:2]))


def test_json_has_the_documented_fields(host: Host) -> None:
    document = json.loads(LiveTopology(host).to_json())
    assert list(document) == ["numa_nodes", "devices", "distances", "problems"]
    for device in document["devices"]:
        assert set(device) >= FIELDS
        assert device["numa_source"] in ("device", "ancestor", "cpulist", None)
    for pair in document["distances"]:
        lower, higher = pair.split(",")
        assert lower < higher


def test_an_unplugged_gpu_is_removed_after_its_event(host: Host) -> None:
    live = LiveTopology(host)
    gpu = next(device for device in live.snapshot().relevant if device.kind is DeviceKind.GPU)
    change = live.apply(unplug(host, gpu))
    assert change == TopologyChange(removed=(gpu.pci_address,))
    assert change
    assert gpu.pci_address not in live.snapshot().by_address
    assert live.snapshot() == scan(host)
    assert not live.rescan(), "the event covered every change"


def test_a_rescan_finds_changes_without_events(host: Host) -> None:
    live = LiveTopology(host)
    gpu = next(device for device in live.snapshot().relevant if device.kind is DeviceKind.GPU)
    unplug(host, gpu)
    assert gpu.pci_address in live.snapshot().by_address
    assert live.rescan() == TopologyChange(removed=(gpu.pci_address,))
    assert live.snapshot() == scan(host)


def test_events_of_other_devices_change_nothing(host: Host) -> None:
    live = LiveTopology(host)
    for event in (
        Uevent("add", "/devices/virtual/net/veth0", "net"),
        Uevent("change", "/devices/system/memory/memory4", "memory"),
        Uevent("add", "/devices/pci0000:00/0000:00:1f.2/usb1/1-1", "usb"),
        Uevent("remove", "/devices/pci0000:00/0000:00:1e.0", "pci"),
    ):
        assert not live.apply(event)


def test_a_live_topology_is_thread_safe(host: Host) -> None:
    live = LiveTopology(host)
    expected = live.snapshot()
    event = Uevent("change", f"/{device_folder(host, expected.relevant[0]).relative_to(host.sysfs)}", "pci")

    def work() -> None:
        for _ in range(20):
            assert not live.apply(event)
            assert not live.rescan()
            assert live.snapshot() == expected

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result()


def test_a_missing_sysfs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PermanentError) as missing:
        scan(Host(sysfs=tmp_path / "missing"))
    assert str(missing.value).startswith(
        f"{tmp_path / 'missing'}: cannot open this as sysfs: no such file or directory"
    )
    assert "--sysfs-root" in str(missing.value)
    with pytest.raises(PermanentError, match="not a sysfs: it holds neither bus/ nor devices/"):
        scan(Host(sysfs=tmp_path))


def test_a_vanished_sysfs_keeps_the_last_snapshot(host: Host) -> None:
    live = LiveTopology(host)
    before = live.snapshot()
    event = unplug(host, before.relevant[0])
    host.sysfs.rename(host.sysfs.with_name("gone"))
    for call in (live.rescan, lambda: live.apply(event)):
        with pytest.raises(PermanentError, match="cannot open this as sysfs"):
            call()
    assert live.snapshot() == before


def test_event_encoding_round_trips() -> None:
    event = Uevent("bind", "/devices/pci0000:3a/0000:3a:00.0", "pci")
    assert Uevent.decode(event.encode()) == event
    assert event.encode().startswith(b"bind@/devices/pci0000:3a/0000:3a:00.0\0ACTION=bind\0")
    with pytest.raises(ValueError, match="no SUBSYSTEM"):
        Uevent.decode(b"add@/x\0ACTION=add\0DEVPATH=/x\0")


@pytest.fixture
def kernel() -> UeventSocket:
    try:
        return UeventSocket()
    except PermanentError as error:
        pytest.skip(f"this machine has no uevents: {error}")


def test_the_uevent_socket_works_with_event_loops(kernel: UeventSocket) -> None:
    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(kernel.fileno(), lambda: None)
        loop.remove_reader(kernel.fileno())

    with kernel:
        received = kernel.receive()
        assert not received.lost
        assert not os.get_blocking(kernel.fileno())
        asyncio.run(watch())
    with pytest.raises(OSError, match="closed"):
        kernel.fileno()
    kernel.close()


def test_events_of_other_senders_are_ignored(kernel: UeventSocket) -> None:
    forged = Uevent("remove", "/devices/pci0000:00/0000:00:03.0", "pci")
    with kernel, socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as sender:
        duplicate = socket.socket(fileno=os.dup(kernel.fileno()))
        port = duplicate.getsockname()[0]
        duplicate.close()
        try:
            sender.sendto(forged.encode(), (port, 0))
        except PermissionError:
            pytest.skip("this user may not send to netlink sockets")
        assert forged not in kernel.receive().events


def test_events_of_the_kernel_are_received(kernel: UeventSocket) -> None:
    """A write of an action to the `uevent` file of a device makes the kernel send the event."""
    target = Path("/sys/devices/system/cpu/cpu0/uevent")
    with kernel:
        try:
            target.write_text("change")
        except OSError as error:
            pytest.skip(f"uevents cannot be requested here: {error}")
        # Events of other network interfaces can precede it.
        event = Uevent("change", "/devices/system/cpu/cpu0", "cpu")
        eventually(lambda: event in kernel.receive().events)
