"""Generates cdi/examples: the CDI specs that the agent writes, one claim for each kind of device.

Run it from any directory: `python cdi/generate.py [DIRECTORY]`. This file defines the hosts (device nodes and their
numbers); the agent's code generates everything else. If an example differs from the committed file, the CDI specs of
claims have changed. Tests compare both, and check each example against cdi/schema.json and the official loader.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import NAMESPACE_DNS, uuid5

from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.edits import EditProviders
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode, Family, NodeRole

HERE = Path(__file__).resolve().parent

NVIDIA_CONTROL = {
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-modeset": (195, 254),
    "/dev/nvidia-uvm": (508, 0),
    "/dev/nvidia-uvm-tools": (508, 1),
}


def device(
    family: Family, vendor: str, address: str, nodes: Mapping[str, NodeRole] = {}, suffix: str = "", **identity: str
) -> Device:
    """Describe a device as the inventory would."""
    name = f"{family}-{address.replace(':', '-').replace('.', '-')}{suffix}"
    host_nodes = tuple(DeviceNode(path, path, role) for path, role in nodes.items())
    return Device(name, family, vendor, address, attributes={}, nodes=host_nodes, identity=identity)


GPU_UUIDS = ("GPU-6a3f6b12-7c0d-4f7e-8a55-0c5d2f7b1e01", "GPU-6a3f6b12-7c0d-4f7e-8a55-0c5d2f7b1e02")
NVIDIA = [
    device("gpu", "nvidia", "0000:1b:00.0", {"/dev/nvidia0": "gpu"}, uuid=GPU_UUIDS[0]),
    device("gpu", "nvidia", "0000:43:00.0", {"/dev/nvidia1": "gpu"}, uuid=GPU_UUIDS[1]),
]
MIG = device(
    "gpu",
    "nvidia",
    "0000:1b:00.0",
    {
        "/dev/nvidia0": "gpu",
        "/dev/nvidia-caps/nvidia-cap66": "capability",
        "/dev/nvidia-caps/nvidia-cap67": "capability",
    },
    suffix="-mig-1g-10gb-4",
    uuid="MIG-3c1f0f7a-11aa-5b6f-9b0e-0f9d8c1e52aa",
)
AMD = device(
    "gpu", "amd", "0000:c1:00.0", {"/dev/kfd": "kfd", "/dev/dri/card1": "card", "/dev/dri/renderD128": "render"}
)
INTEL = device("gpu", "intel", "0000:3a:00.0", {"/dev/dri/card2": "card", "/dev/dri/renderD129": "render"})
RDMA_NIC = device(
    "nic",
    "mellanox",
    "0000:18:00.0",
    {"/dev/infiniband/uverbs0": "uverbs", "/dev/infiniband/rdma_cm": "rdma-cm"},
    ifname="ibp24s0",
    rdma="mlx5_0",
)
PLAIN_NIC = device("nic", "intel", "0000:31:00.0", ifname="ens3f0")
XILINX = device("fpga", "xilinx", "0000:86:00.1", {"/dev/dri/renderD130": "render", "/dev/xclmgmt34304": "vendor"})
DFL = device("fpga", "intel", "0000:af:00.0", {"/dev/dfl-fme.0": "vendor", "/dev/dfl-port.0": "vendor"})
GAUDI = device("accelerator", "habana", "0000:19:00.0", {"/dev/accel/accel0": "accel"})
VFIO = device("accelerator", "nvidia", "0000:65:00.0", {"/dev/vfio/42": "vfio", "/dev/vfio/vfio": "vfio-control"})

NUMBERS = NVIDIA_CONTROL | {
    "/dev/nvidia0": (195, 0),
    "/dev/nvidia1": (195, 1),
    "/dev/nvidia-caps/nvidia-cap66": (511, 66),
    "/dev/nvidia-caps/nvidia-cap67": (511, 67),
    "/dev/kfd": (234, 0),
    "/dev/dri/card1": (226, 1),
    "/dev/dri/renderD128": (226, 128),
    "/dev/dri/card2": (226, 2),
    "/dev/dri/renderD129": (226, 129),
    "/dev/dri/by-path/pci-0000:3a:00.0-card": (226, 2),
    "/dev/dri/by-path/pci-0000:3a:00.0-render": (226, 129),
    "/dev/infiniband/uverbs0": (231, 192),
    "/dev/infiniband/rdma_cm": (10, 58),
    "/dev/dri/renderD130": (226, 130),
    "/dev/xclmgmt34304": (236, 34304),
    "/dev/dfl-fme.0": (237, 0),
    "/dev/dfl-port.0": (238, 0),
    "/dev/accel/accel0": (261, 0),
    "/dev/vfio/42": (235, 42),
    "/dev/vfio/vfio": (10, 196),
}

CLAIMS: dict[str, list[Device]] = {
    "nvidia-two-gpus": NVIDIA,
    "nvidia-mig": [MIG],
    "nvidia-gpu-and-rdma-nic": [NVIDIA[0], RDMA_NIC],
    "amd-gpu": [AMD],
    "intel-gpu": [INTEL],
    "rdma-nic": [RDMA_NIC],
    "plain-nic": [PLAIN_NIC],
    "xilinx-fpga": [XILINX],
    "intel-fpga": [DFL],
    "gaudi": [GAUDI],
    "vfio": [VFIO],
}


def examples() -> Iterator[tuple[str, str]]:
    """Yield the file name and text of each example."""
    recipes = EditProviders(Host(), directories=())
    with host_nodes(NUMBERS):
        for name, devices in CLAIMS.items():
            held = [
                SpecDevice(ClaimDevice("n/" + item.family, item.name, (item.family,)), item, recipes.edits(item))
                for item in devices
            ]
            spec = build_spec("dra-agent.internal", ClaimRef(str(uuid5(NAMESPACE_DNS, name)), "default", name), held)
            yield f"{name}.json", json.dumps(json.loads(spec.data), indent=2) + "\n"


@contextmanager
def host_nodes(numbers: Mapping[str, tuple[int, int]]) -> Iterator[None]:
    """Make the process see exactly these character devices under /dev."""

    def seeing(real: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            text = os.fspath(path)
            if text in numbers:
                return SimpleNamespace(st_mode=stat.S_IFCHR | 0o666, st_rdev=os.makedev(*numbers[text]))
            if isinstance(text, str) and text.startswith("/dev/"):
                raise FileNotFoundError(2, os.strerror(2), text)
            return real(path, *args, **kwargs)

        return look

    with mock.patch("os.lstat", seeing(os.lstat)), mock.patch("os.stat", seeing(os.stat)):
        yield


def main() -> None:
    """Write all examples to the given directory, or to `examples` next to this file."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "examples"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in examples():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
