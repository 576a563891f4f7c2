"""Container edits of all devices except NVIDIA GPUs, and device nodes with errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dra_agent.cdi.edits import DeviceEdits, EditProviders
from dra_agent.cdi.model import DeviceNode as Node
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode, Family, NodeRole

MakeNode = Callable[[Path, int, int], None]


def edits(
    host: Host, family: Family, vendor: str, nodes: Mapping[str, NodeRole], *, touch: bool = True, **identity: str
) -> DeviceEdits:
    for path in nodes if touch else ():
        host.dev_path(path).parent.mkdir(parents=True, exist_ok=True)
        host.dev_path(path).touch()
    host_nodes = tuple(DeviceNode(path, str(host.dev_path(path)), role) for path, role in nodes.items())
    device = Device(f"{family}-x", family, vendor, "0000:03:00.0", {}, nodes=host_nodes, identity=identity)
    return EditProviders(host, directories=[]).edits(device)


def paths(found: DeviceEdits) -> tuple[list[str], list[str]]:
    return [m.container_path for m in found.own.mounts], [m.container_path for m in found.common.mounts]


def test_amd_gpu_has_own_render_node_and_shared_kfd(simulated_host: Host) -> None:
    found = edits(
        simulated_host, "gpu", "amd", {"/dev/kfd": "kfd", "/dev/dri/card1": "card", "/dev/dri/renderD129": "render"}
    )
    assert paths(found) == (["/dev/dri/card1", "/dev/dri/renderD129"], ["/dev/kfd"]) and found.notes == ()
    without = edits(simulated_host, "gpu", "amd", {"/dev/dri/renderD129": "render"})
    assert "no ROCm" in without.notes[0]


def test_intel_gpu_has_by_path_links_if_the_host_has_them(simulated_host: Host) -> None:
    nodes: dict[str, NodeRole] = {"/dev/dri/card0": "card", "/dev/dri/renderD128": "render"}
    assert paths(edits(simulated_host, "gpu", "intel", nodes))[0] == list(nodes)
    link = simulated_host.dev_path("/dev/dri/by-path/pci-0000:03:00.0-render")
    link.parent.mkdir()
    link.symlink_to("../renderD128")
    assert paths(edits(simulated_host, "gpu", "intel", nodes))[0] == [
        *nodes,
        "/dev/dri/by-path/pci-0000:03:00.0-render",
    ]


def test_hca_has_verbs_node_and_connection_manager(simulated_host: Host) -> None:
    found = edits(
        simulated_host,
        "nic",
        "mellanox",
        {"/dev/infiniband/uverbs2": "uverbs", "/dev/infiniband/rdma_cm": "rdma-cm"},
        ifname="ib2",
    )
    assert paths(found) == (["/dev/infiniband/uverbs2"], ["/dev/infiniband/rdma_cm"])
    assert "stays on the host" in found.notes[0]


def test_nic_without_rdma_needs_no_node(simulated_host: Host) -> None:
    found = edits(simulated_host, "nic", "intel", {}, ifname="eth0")
    assert not found.own and not found.common and "stays on the host" in found.notes[0]


@pytest.mark.parametrize(
    ("family", "vendor", "nodes"),
    [
        ("fpga", "xilinx", {"/dev/dri/renderD130": "render", "/dev/xclmgmt34304": "vendor"}),
        ("fpga", "intel", {"/dev/dfl-fme.0": "vendor", "/dev/dfl-port.0": "vendor"}),
        ("accelerator", "habana", {"/dev/accel/accel3": "accel"}),
        ("gpu", "0x1234", {"/dev/dri/renderD131": "render"}),
    ],
)
def test_other_devices_have_the_nodes_of_the_inventory(
    simulated_host: Host, family: Family, vendor: str, nodes: dict[str, NodeRole]
) -> None:
    assert paths(edits(simulated_host, family, vendor, nodes)) == (list(nodes), [])


def test_vfio_device_has_its_group_for_every_family(simulated_host: Host) -> None:
    nodes: dict[str, NodeRole] = {"/dev/vfio/42": "vfio", "/dev/vfio/vfio": "vfio-control"}
    devices: tuple[tuple[Family, str], ...] = (("gpu", "nvidia"), ("nic", "mellanox"))
    for family, vendor in devices:
        assert paths(edits(simulated_host, family, vendor, nodes)) == (["/dev/vfio/42"], ["/dev/vfio/vfio"])


def test_device_without_nodes_has_a_note(simulated_host: Host) -> None:
    assert "no device node" in edits(simulated_host, "accelerator", "0x1", {}).notes[0]


def test_device_numbers_are_those_of_the_node(simulated_host: Host, make_node: MakeNode) -> None:
    make_node(simulated_host.dev_path("/dev/accel/accel0"), 261, 5)
    found = edits(simulated_host, "accelerator", "habana", {"/dev/accel/accel0": "accel"}, touch=False)
    host_path = str(simulated_host.dev_path("/dev/accel/accel0"))
    assert found.own.device_nodes == (Node("/dev/accel/accel0", host_path, "c", 261, 5, permissions="rw"),)


def test_real_root_needs_no_host_path() -> None:
    nodes = (DeviceNode("/dev/null", "/dev/null", "accel"),)
    found = EditProviders(Host(), directories=[]).edits(
        Device("a", "accelerator", "x", "0000:03:00.0", {}, nodes=nodes)
    )
    assert found.own.device_nodes == (Node("/dev/null", "", "c", 1, 3, permissions="rw"),)


@pytest.mark.parametrize("kind", ["missing", "directory", "link", "loop"])
def test_invalid_device_node_is_named_in_the_error(simulated_host: Host, kind: str) -> None:
    path = simulated_host.dev_path("/dev/accel/accel0")
    path.parent.mkdir()
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/shadow")
    elif kind == "loop":
        path.parent.rmdir()
        path.parent.symlink_to(path.parent)
    with pytest.raises(RetryableError, match="accel0"):
        edits(simulated_host, "accelerator", "habana", {"/dev/accel/accel0": "accel"}, touch=False)


def test_regular_file_on_a_real_host_is_not_a_device(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    device = Device("a", "accelerator", "x", "0000:03:00.0", {}, nodes=(DeviceNode(str(file), str(file), "accel"),))
    with pytest.raises(RetryableError, match="is not a device node"):
        EditProviders(Host(), directories=[]).edits(device)
