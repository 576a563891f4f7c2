"""Device plugins, as a Node's capacity shows them: which extended resources there are, and which devices each covers.

An extended resource that DRA itself serves (a DeviceClass with `extendedResourceName`) is in no node's capacity, so it
is not mistaken for a device plugin. Resource names of plugins are arbitrary and do not identify devices: names
that are not known here are ignored, and a known name covers every device of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_agent.inventory.model import Device, Family

_NONE = re.compile(r"0*(\.0*)?([eE][0-9]+|[A-Za-z]+)?")
"""A quantity of zero, which the kubelet keeps for a removed plugin."""


@dataclass(frozen=True, slots=True)
class DevicePluginResource:
    """An extended resource of the node, and the devices that it covers."""

    resource: str
    """As the capacity names it: "nvidia.com/gpu"."""
    covers: Callable[[Device], bool]


@dataclass(frozen=True, slots=True)
class _Known:
    """One pattern of resource names; the first that matches counts."""

    name: re.Pattern[str]
    covers: Callable[[Device], bool]


def _has_vendor(family: Family, *vendors: str) -> Callable[[Device], bool]:
    return lambda device: device.family == family and device.vendor in vendors


def _is_true(device: Device, name: str) -> bool:
    attribute = device.attributes.get(name)
    return attribute is not None and attribute.value is True


def _rdma(device: Device) -> bool:
    return device.family == "nic" and _is_true(device, "rdma")


def _virtual_nic(device: Device) -> bool:
    return device.family == "nic" and _is_true(device, "isSriovVf")


_KNOWN = tuple(
    _Known(re.compile(pattern), covers)
    for pattern, covers in (
        # Users choose the domain of the SR-IOV plugin; most names indicate the type.
        (r"[^/]+/[^/]*(sriov|netdev|_vfs?(?![a-z]))[^/]*", _virtual_nic),
        # k8s-rdma-shared-dev-plugin: rdma/hca_shared_devices_a; others: nvidia.com/rdma_..., nvidia.com/hostdev
        (r"rdma/.+", _rdma),
        (r"(nvidia|mellanox)\.com/[^/]*(rdma|roce|hostdev|hca|mlnx)[^/]*", _rdma),
        # gpu, gpu.shared, mig-1g.10gb, and names of products for virtual machines (GA102GL_A10).
        (r"nvidia\.com/.+", _has_vendor("gpu", "nvidia")),
        (r"(amd\.com/xilinx|xilinx\.com/).*", _has_vendor("fpga", "xilinx")),
        (r"amd\.com/.+", _has_vendor("gpu", "amd")),
        # i915, xe; their _monitoring is a resource for all GPUs and allocates none.
        (r"gpu\.intel\.com/(i915|xe)", _has_vendor("gpu", "intel")),
        (r"fpga\.intel\.com/.+", _has_vendor("fpga", "intel", "altera")),
        (r"habana\.ai/.+", _has_vendor("accelerator", "habana")),
        (r"huawei\.com/.+", _has_vendor("accelerator", "huawei")),
        (r"google\.com/tpu.*", _has_vendor("accelerator", "google")),
        (r"aws\.amazon\.com/neuron.*", _has_vendor("accelerator", "amazon")),
        (r"cambricon\.com/.+", _has_vendor("accelerator", "cambricon")),
        (r"tenstorrent\.com/.+", _has_vendor("accelerator", "tenstorrent")),
        (r"qualcomm\.com/.+", _has_vendor("accelerator", "qualcomm")),
    )
)


def plugins_of(node: Mapping[str, Any]) -> list[DevicePluginResource]:
    """Return the device plugins that a Node shows, by the names of their resources.

    `node` is the v1 Node as JSON values; capacity counts, so that devices that are all unhealthy or in use count too.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    found = []
    for resource, amount in sorted(capacity.items()):
        known = next((known for known in _KNOWN if known.name.fullmatch(resource)), None)
        if known is not None and not _NONE.fullmatch(str(amount)):
            found.append(DevicePluginResource(resource, known.covers))
    return found
