"""Network adapters: traffic, errors and drops of the interface, and of all ports of the RDMA device."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.model import DeviceSample
from dra_agent.telemetry.sources.network import NetworkSource

ADDRESS = "0000:3b:00.0"
STATISTICS = {"rx_bytes": 10, "tx_bytes": 20, "rx_errors": 1, "tx_errors": 2, "rx_dropped": 3, "tx_dropped": 4}
COUNTERS = {
    "port_rcv_data": 100,
    "port_xmit_data": 200,
    "port_rcv_errors": 5,
    "port_xmit_discards": 6,
    "link_downed": 7,
}


def nic(**identity: str) -> Device:
    name = device_name("nic", ADDRESS)
    return Device(
        name=name, family="nic", vendor="mellanox", pci_address=ADDRESS, attributes={}, identity=dict(identity)
    )


def write(sysfs: Path, folder: str, files: dict[str, object]) -> None:
    """Write files below the adapter's folder; the class has a link to it."""
    kind, _, name = folder.partition("/")
    function = sysfs / "devices/pci0000:3a" / ADDRESS
    for file, value in files.items():
        path = function / kind / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    link = sysfs / "class" / kind / name.partition("/")[0]
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(function / kind / name.partition("/")[0])


def read(sysfs: Path, **identity: str) -> DeviceSample | None:
    return NetworkSource(Host(sysfs=sysfs)).read(nic(**identity))


def test_an_interface(tmp_path: Path) -> None:
    write(tmp_path, "net/ens1", {f"statistics/{name}": value for name, value in STATISTICS.items()})
    assert read(tmp_path, ifname="ens1") == DeviceSample(
        network_receive_bytes=10,
        network_transmit_bytes=20,
        network_receive_errors=1,
        network_transmit_errors=2,
        network_receive_drops=3,
        network_transmit_drops=4,
    )


def test_the_ports_of_an_rdma_device_are_counted_together(tmp_path: Path) -> None:
    for port in (1, 2):
        write(tmp_path, "infiniband/mlx5_0", {f"ports/{port}/counters/{name}": n for name, n in COUNTERS.items()})
    assert read(tmp_path, rdma="mlx5_0") == DeviceSample(
        rdma_receive_bytes=800,
        rdma_transmit_bytes=1600,
        rdma_receive_errors=10,
        rdma_transmit_discards=12,
        rdma_link_downed=14,
    )


def test_counters_that_a_driver_does_not_have_are_absent(tmp_path: Path) -> None:
    write(tmp_path, "net/ens1", {"statistics/rx_bytes": 10})
    write(tmp_path, "infiniband/efa_0", {"ports/1/state": "4: ACTIVE"})
    assert read(tmp_path, ifname="ens1", rdma="efa_0") == DeviceSample(network_receive_bytes=10)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_counters_that_a_driver_refuses_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write(tmp_path, "net/ens1", {"statistics/rx_bytes": 10})
    write(tmp_path, "infiniband/mlx5_0", {f"ports/1/counters/{name}": n for name, n in COUNTERS.items()})
    open_file = os.open

    def refuse(path: str, flags: int) -> int:
        if "/counters/" in path:
            raise OSError(number, "refused")
        return open_file(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        sample = read(tmp_path, ifname="ens1", rdma="mlx5_0")
    assert sample == DeviceSample(network_receive_bytes=10)


@pytest.mark.parametrize(
    ("kind", "identity", "file"), [("net", "ifname", "rx_bytes"), ("infiniband", "rdma", "port_rcv_data")]
)
def test_the_counters_of_one_reading_are_of_one_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, identity: str, file: str
) -> None:
    folder, names = ("statistics", STATISTICS) if kind == "net" else ("ports/1/counters", COUNTERS)
    write(tmp_path, f"{kind}/name", {f"{folder}/{name}": value for name, value in names.items()})
    expected = read(tmp_path, **{identity: "name"})
    assert expected is not None
    other = tmp_path / "devices/pci0000:3a/0000:3c:00.0" / kind / "name"
    for name in names:
        (other / folder).mkdir(parents=True, exist_ok=True)
        (other / folder / name).write_text("999999\n")
    open_file = os.open

    def rename_first(path: str, flags: int) -> int:
        opened = open_file(path, flags)
        if path.endswith(f"/{file}"):
            link = tmp_path / "class" / kind / "name"
            link.unlink()
            link.symlink_to(other)
        return opened

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", rename_first)
        assert read(tmp_path, **{identity: "name"}) == expected
    assert read(tmp_path, **{identity: "name"}) is None, "now the name is of the other adapter"


def test_an_rdma_device_that_is_removed_while_it_is_read_has_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "net/ens1", {"statistics/rx_bytes": 10})
    write(tmp_path, "infiniband/mlx5_0", {"state": "4: ACTIVE"})
    assert read(tmp_path, ifname="ens1", rdma="mlx5_0") == DeviceSample(network_receive_bytes=10)


def test_an_interface_of_another_adapter_with_the_name_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "devices/pci0000:3a/0000:3c:00.0/net/ens1/statistics"
    other.mkdir(parents=True)
    (other / "rx_bytes").write_text("10\n")
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/ens1").symlink_to(other.parent)
    assert read(tmp_path, ifname="ens1") is None


@pytest.mark.parametrize("text", ["", "many", "-", "0x10"])
def test_a_counter_that_is_not_a_number_is_an_error(tmp_path: Path, text: str) -> None:
    write(tmp_path, "net/ens1", {"statistics/rx_bytes": text})
    with pytest.raises(ValueError, match="invalid literal"):
        read(tmp_path, ifname="ens1")


def test_a_name_that_is_not_a_link_to_the_adapter_is_not_read(tmp_path: Path) -> None:
    plain = tmp_path / "class/net/ens1/statistics"
    plain.mkdir(parents=True)
    (plain / "rx_bytes").write_text("10\n")
    assert read(tmp_path, ifname="ens1") is None
    assert read(tmp_path, ifname="ens2") is None
