"""Hosts that users have reported: of each of their devices, what a claim gets, or the code of why it is excluded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from claimable.claims import received
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.topology import scan
from dra_simulate import build
from recordings.pack import unpack

Value = str | int | bool | None


class Published(NamedTuple):
    """A device that can be claimed."""

    nodes: str = ""
    """That a container gets, without those of vfio's and AMD's control."""
    attributes: Mapping[str, Value] = {}
    """Those that were wrong, or that tell it from others."""
    memory: str | None = None
    """None: it is not compared."""


def _gpu(number: int, render: int, generation: int, width: int, memory: str | None = None) -> Published:
    link = {"pcieGeneration": generation, "pcieWidth": width, "integrated": False}
    return Published(f"/dev/dri/card{number} /dev/dri/renderD{render}", link, memory)


def _passed_through(group: int) -> Published:
    return Published(f"/dev/vfio/{group}", {"type": "vfio", "iommuGroup": group})


PANTHER_LAKE = [f"gpu-0000-00-02-{number}" for number in range(1, 8)]
"""The virtual functions of gpu-0000-00-02-0."""

HOSTS: dict[str, dict[str, Published | str]] = {
    # The card's inner ports say 2.5 GT/s x1, or 32 GT/s x16: the link is that between the card and its slot.
    "arc-inner-switch": {"gpu-0000-03-00-0": _gpu(1, 128, 4, 16), "gpu-0000-07-00-0": _gpu(2, 129, 4, 8, "12Gi")},
    "navi48-inner-switch": {
        "gpu-0000-03-00-0": _gpu(1, 128, 4, 8, "16304Mi"),
        "gpu-0000-2f-00-0": _gpu(2, 129, 4, 2, "16304Mi"),
    },
    "nouveau": {"gpu-0000-01-00-0": "unusable-driver"},
    # QAT works through virtual functions on VFIO.
    "qat": {
        "accelerator-0000-4e-00-0": "no-node",
        "accelerator-0000-6b-00-0": "physical-function",
        "accelerator-0000-e8-00-0": "no-node",
        "accelerator-0000-6b-00-1": _passed_through(200),
    },
    # KFD's bank of memory, not the carve-out of 512 MiB; neither the NPU nor the Coral has the class of an accelerator.
    "strix-halo": {
        "gpu-0000-c5-00-0": Published("/dev/dri/card1 /dev/dri/renderD128", {"integrated": True}, "62Gi"),
        "accelerator-0000-c6-00-1": Published("/dev/accel/accel0", {"vendor": "amd", "driver": "amdxdna"}),
        "accelerator-0000-02-00-0": Published("/dev/apex_0", {"vendorID": "0x1ac1", "driver": "apex"}),
    },
    "igpu-next-to-dgpu": {
        "gpu-0000-03-00-0": _gpu(1, 128, 5, 16, "32624Mi"),
        "gpu-0000-06-00-0": _gpu(2, 129, 5, 16, "32624Mi"),
        "gpu-0000-0f-00-0": Published("/dev/dri/card0 /dev/dri/renderD130", {"integrated": True}, "2Gi"),
    },
    "vfio-noiommu": {
        "nic-0000-00-03-0": "host-interface",
        "nic-0000-00-05-0": "vfio-noiommu",
        "nic-0000-00-06-0": "vfio-noiommu",
        "gpu-0000-00-07-0": "vfio-noiommu",
        "nic-0000-00-08-0": "user-space-driver",
    },
    # Without an address on the bond: its ports are in use nevertheless, and share one RDMA device.
    "bond-over-roce-lag": {
        "nic-0000-17-00-0": "host-interface",
        "nic-0000-7f-00-0": "host-interface",
        "nic-0000-7f-00-1": "host-interface",
    },
    # The first port of each has no cable.
    "connectx3-two-ports": {
        "nic-0000-01-00-0": Published("/dev/infiniband/uverbs0", {"ifName": "ens1d1", "state": "up", "portCount": 2}),
        "nic-0000-02-00-0": Published("/dev/infiniband/uverbs1", {"ifName": "ib1", "state": "up", "portCount": 2}),
        "nic-0000-03-00-0": "host-interface",
    },
    "reserving-drivers": {
        "gpu-0000-10-00-0": "reserved",
        "gpu-0000-11-00-0": "reserved",
        "gpu-0000-12-00-0": "unusable-driver",
        "gpu-0000-13-00-0": "unusable-driver",
        "gpu-0000-14-00-0": "reserved",
        "gpu-0000-15-00-0": "reserved",
        "nic-0000-16-00-0": "user-space-driver",
        "nic-0000-17-00-0": "reserved",
        "accelerator-0000-18-00-0": "reserved",
        "fpga-0000-19-00-0": "reserved",
    },
    "vgpu-host": {
        "gpu-0000-4b-00-0": "physical-function",
        **dict.fromkeys((f"gpu-0000-4b-00-{number}" for number in range(4, 8)), "virtualized"),
    },
    "gim-host": {"gpu-0000-05-00-0": "virtualized", "gpu-0000-05-02-0": _passed_through(61)},
    "panther-lake-vfs-without-driver": {
        "gpu-0000-00-02-0": "physical-function",
        **dict.fromkeys(PANTHER_LAKE, "no-driver"),
    },
    "panther-lake-vfs-on-vfio": {
        "gpu-0000-00-02-0": "physical-function",
        **{name: _passed_through(21 + number) for number, name in enumerate(PANTHER_LAKE)},
    },
    # Its GPU is a platform device.
    "jetson-thor": {"nic-0001-01-00-0": "host-interface", "gpu-tegra": "unsupported-platform"},
}
"""By the name of the recording (tests/recordings/data)."""

CONTROL = {"/dev/kfd", "/dev/vfio/vfio", "/dev/infiniband/rdma_cm"}


@pytest.mark.parametrize("name", HOSTS)
def test_a_device_of_a_reported_host_can_be_claimed_or_has_a_code(name: str, tmp_path: Path) -> None:
    host = build(str(unpack(name, tmp_path)), tmp_path / "host")
    inventory = collect(host, scan(host))
    assert inventory.problems == ()
    nodes = received(host, inventory, tmp_path)
    found: dict[str, Published | str] = {one.name: one.code for one in inventory.excluded}
    for device in inventory.devices:
        expected = HOSTS[name].get(device.name)
        compared = expected if isinstance(expected, Published) else Published()
        assert device.health != "unhealthy"
        found[device.name] = Published(
            " ".join(sorted(nodes[device.name] - CONTROL)),
            {attribute: _value(device, attribute) for attribute in compared.attributes},
            device.capacity["memory"].value if compared.memory is not None and "memory" in device.capacity else None,
        )
    assert found == HOSTS[name]


def _value(device: Device, name: str) -> Value:
    attribute = device.attributes.get(name)
    return None if attribute is None else attribute.value
