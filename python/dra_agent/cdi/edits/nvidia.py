"""NVIDIA GPUs and MIG slices: three ways to give a container the device, best first.

1. The toolkit's own spec is in a CDI directory and fits the driver that runs: its device does the work, by id.
2. `nvidia-ctk` is installed: what it says of the GPU becomes part of the claim's spec.
3. Neither: the device nodes alone, with a note that driver libraries do not come along.
Driver libraries must match the running kernel driver to the last digit, hence the check in 1 and the cache key in 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.edits.provider import DeviceEdits
from dra_agent.cdi.edits.toolkit import ToolkitCommand
from dra_agent.cdi.edits.toolkit_spec import ToolkitSpecs
from dra_agent.cdi.model import ContainerEdits, DeviceNode
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.model import DeviceNode as HostNode

# Those that the inventory lists with a GPU must be there, the others of these come along where they are.
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_LEGACY_HOOK_OFF = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps the toolkit's runtime hook of old from adding GPUs that the claim does not hold."""
_NO_LIBRARIES = (
    "driver libraries are not injected: the image must bring those of the running driver, "
    "or install nvidia-container-toolkit on the host"
)


class NvidiaGpu:
    """The recipe, for one host."""

    def __init__(self, host: Host, directories: Sequence[Path], ctk: Path | None) -> None:
        self._host = host
        self._control = [(path, str(host.dev_path(path))) for path in CONTROL_NODES]
        self._published = ToolkitSpecs(directories)
        self._ctk = ToolkitCommand(ctk) if ctk is not None else None

    def __call__(self, device: Device) -> DeviceEdits:
        """Give what a GPU or MIG slice needs, the best way that the host offers now."""
        own = self._own_nodes(device)
        # A partition that is made for its claim comes with what its GPU needs; its own nodes are its set-up's to add.
        uuid = device.identity.get("uuid") or device.identity.get("parent_uuid")
        version = driver_version(device)
        if uuid is not None:
            gpu_nodes = [node.path for node in device.nodes if node.role == "gpu"]
            published = self._published.find(uuid, version, gpu_nodes)
            if published is not None:
                return DeviceEdits(own=ContainerEdits(), foreign_ids=(published,))
            if self._ctk is not None:
                told, common = self._ctk.edits(uuid, version)
                return DeviceEdits(own=_numbered(told, own), common=common)
        common = ContainerEdits(env=(_LEGACY_HOOK_OFF,))
        control = {node.path: node.host_path for node in device.nodes if node.role == "control"}
        others = [(path, host_path) for path, host_path in self._control if path not in control]
        common = common.merged(nodes.edits(control.items(), device=device.name))
        common = common.merged(nodes.edits(others, device=device.name, optional=True))
        return DeviceEdits(own=own, common=common, notes=(_NO_LIBRARIES,))

    def _own_nodes(self, device: Device) -> ContainerEdits:
        """Look at the GPU's nodes now, whichever way is taken: no way works for a GPU whose node is gone."""
        _check_instance(self._host, device)
        unmade = {
            node.path: made
            for node in device.nodes
            if node.role == "capability" and (made := _capability(self._host, node)) is not None
        }
        there = [node for node in device.nodes if node.role != "control" and node.path not in unmade]
        edits = nodes.of_device(there, device=device.name)
        return edits.merged(ContainerEdits(device_nodes=tuple(unmade.values()))) if unmade else edits


def capability_edits(host: Host, minors: Sequence[int], *, device: str) -> ContainerEdits:
    """Give the nodes that open a MIG instance; RetryableError where one is neither there nor can be described."""
    edits = ContainerEdits()
    for minor in minors:
        path = f"/dev/nvidia-caps/nvidia-cap{minor}"
        node = HostNode(path, str(host.dev_path(path)), "capability")
        made = _capability(host, node)
        found = ContainerEdits(device_nodes=(made,)) if made is not None else nodes.of_device([node], device=device)
        edits = edits.merged(found)
    return edits


def _check_instance(host: Host, device: Device) -> None:
    """RetryableError where a MIG instance was destroyed since the inventory looked.

    The driver shows the capabilities of an instance as long as it exists (MIG user guide, "Device Nodes and
    Capabilities"). The minors belong to the ids, not to the instance: the next one with these ids would be injected.
    """
    identity = device.identity
    if "gpu_instance" not in identity or not any(node.role == "capability" for node in device.nodes):
        return
    gpu = host.proc / f"driver/nvidia/capabilities/gpu{identity.get('minor')}/mig/gi{identity['gpu_instance']}"
    for folder in (gpu, gpu / f"ci{identity.get('compute_instance')}"):
        if not os.path.lexists(folder / "access"):
            raise RetryableError(
                f"its MIG instance is no longer on the GPU: {folder / 'access'} is missing",
                where=f"device {device.name}",
                hint="run `nvidia-smi -L`; the next inventory publishes what is there",
            )


def _capability(host: Host, node: HostNode) -> DeviceNode | None:
    """Describe a MIG capability that has no node on the host: drivers need not make them, numbers are enough."""
    number = re.fullmatch(r"/dev/nvidia-caps/nvidia-cap(\d+)", node.path)
    if number is None or Path(node.host_path).exists():
        return None
    major = _major(host.proc / "devices", "nvidia-caps")
    if major is None:
        return None
    return DeviceNode(node.path, "", "c", major, int(number[1]), permissions="r")


def _numbered(told: ContainerEdits, seen: ContainerEdits) -> ContainerEdits:
    """Put the numbers that were seen on the host into nodes that the toolkit told of by path only."""
    by_path = {node.path: node for node in seen.device_nodes}
    nodes = tuple(by_path.get(node.path, node) for node in told.device_nodes)
    return msgspec.structs.replace(told, device_nodes=nodes)


def driver_version(device: Device) -> tuple[int, ...] | None:
    """Give the running driver's version as numbers (580.65.06 → 580, 65, 6); None where NVML did not tell."""
    attribute = device.attributes.get("driverVersion")
    text = (attribute.version or attribute.string) if attribute is not None else None
    return version_numbers(text) if text else None


def version_numbers(text: str) -> tuple[int, ...]:
    """Compare versions that are written with and without leading zeros: "535.183.01" → (535, 183, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))


def _major(devices: Path, driver: str) -> int | None:
    """Find a character driver's major number in /proc/devices."""
    try:
        text = devices.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^\s*(\d+) {re.escape(driver)}$", text.partition("Block devices")[0], re.MULTILINE)
    return int(found[1]) if found else None
