"""NVIDIA GPUs and MIG instances: three sources of the edits, best first.

1. The toolkit's own spec is in a CDI directory and matches the running driver: its device is injected by id.
2. `nvidia-ctk` is installed: the edits that it generates for the GPU become part of the claim's spec.
3. Neither: the device nodes only, with a note that driver libraries are not injected.
Driver libraries must have exactly the version of the kernel driver, hence the check in 1 and the cache key in 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from dra_agent.cdi.edits.nvidia_toolkit import ToolkitCommand, ToolkitSpecs
from dra_agent.cdi.edits.provider import DeviceEdits, EditContext, EditProvider, node_edits, required_node_edits
from dra_agent.cdi.model import ContainerEdits, DeviceNode
from dra_agent.driver_root import DriverRoot
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.model import DeviceNode as HostNode
from dra_agent.inventory.nvidia.mig_access import has_capabilities

# The nodes that the inventory lists for a GPU are required; the others are injected if they exist.
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Names in /dev."""
_LEGACY_HOOK_OFF = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps the toolkit's legacy runtime hook from adding GPUs that the claim does not hold."""
_NO_LIBRARIES = (
    "driver libraries are not injected: the image must bring those of the running driver, "
    "or install nvidia-container-toolkit on the host"
)


class NvidiaGpu:
    """The provider of one host."""

    def __init__(self, host: Host, directories: Sequence[Path], ctk: Path | None) -> None:
        self._host = host
        self._published = ToolkitSpecs(directories, host.driver_root)
        self._ctk = ToolkitCommand(ctk, root=host.driver_root) if ctk is not None else None

    def __call__(self, device: Device) -> DeviceEdits:
        """Return the edits of a GPU or MIG instance from the best available source."""
        edits = self._edits(device)
        root = self._host.driver_root
        return edits if root is None or root.path == root.mount else _named_on_host(edits, root)

    def _edits(self, device: Device) -> DeviceEdits:
        own = self._own_nodes(device)
        # A partition that is created for its claim gets the edits of its GPU; its set-up adds its own nodes.
        uuid = device.identity.get("uuid") or device.identity.get("parent_uuid")
        version = driver_version(device)
        if uuid is not None:
            gpu_nodes = [node.path for node in device.nodes if node.role == "gpu"]
            published = self._published.find(uuid, version, gpu_nodes)
            if published is not None:
                return DeviceEdits(own=ContainerEdits(), foreign_ids=(published,))
            if self._ctk is not None:
                generated, common = self._ctk.edits(uuid, version)
                return DeviceEdits(own=_with_numbers(generated, own), common=common)
        control = {node.path: node.host_path for node in device.nodes if node.role == "control"}
        dev = self._host.driver_dev()
        # Texts: a Path for each node of each claim takes longer than the check of the node.
        others = [(f"/dev/{name}", f"{dev}/{name}") for name in CONTROL_NODES if f"/dev/{name}" not in control]
        common = node_edits(control.items(), device=device.name, optional=others, env=(_LEGACY_HOOK_OFF,))
        return DeviceEdits(own=own, common=common, notes=(_NO_LIBRARIES,))

    def _own_nodes(self, device: Device) -> ContainerEdits:
        """Return the current nodes of the GPU. They must exist for all three sources."""
        _check_instance(self._host, device)
        described = {
            node.path: described_node
            for node in device.nodes
            if node.role == "capability" and (described_node := _capability(self._host, node)) is not None
        }
        existing = [node for node in device.nodes if node.role != "control" and node.path not in described]
        edits = required_node_edits(existing, device=device.name)
        return edits.merged(ContainerEdits(device_nodes=tuple(described.values()))) if described else edits


def capability_edits(host: Host, minors: Sequence[int], *, device: str) -> ContainerEdits:
    """Return the capability nodes of a MIG instance. Raises RetryableError if one cannot be described."""
    edits = ContainerEdits()
    for minor in minors:
        path = f"/dev/nvidia-caps/nvidia-cap{minor}"
        node = HostNode(path, str(host.driver_node(path)), "capability")
        described_node = _capability(host, node)
        found = (
            ContainerEdits(device_nodes=(described_node,))
            if described_node is not None
            else required_node_edits([node], device=device)
        )
        edits = edits.merged(found)
    return edits


def _check_instance(host: Host, device: Device) -> None:
    """Raise RetryableError if a MIG instance was destroyed after the last inventory.

    The driver lists the capabilities of an instance as long as it exists (MIG user guide, "Device Nodes and
    Capabilities"). The minors belong to the ids, not to the instance: the next one with these ids would be injected.
    """
    identity = device.identity
    if "gpu_instance" not in identity or not any(node.role == "capability" for node in device.nodes):
        return
    if not has_capabilities(host, identity.get("minor", "")):
        # A container runtime covers them: only the next inventory notices that the instance is gone.
        return
    gpu = host.proc / f"driver/nvidia/capabilities/gpu{identity.get('minor')}/mig/gi{identity['gpu_instance']}"
    for folder in (gpu, gpu / f"ci{identity.get('compute_instance')}"):
        if not os.path.lexists(folder / "access"):
            raise RetryableError(
                f"its MIG instance is no longer on the GPU: {folder / 'access'} is missing",
                where=f"device {device.name}",
                hint="run `nvidia-smi -L`; the next inventory publishes the devices that exist",
            )


def _capability(host: Host, node: HostNode) -> DeviceNode | None:
    """Return a MIG capability that has no node on the host: drivers may not create it, its numbers suffice."""
    number = re.fullmatch(r"/dev/nvidia-caps/nvidia-cap(\d+)", node.path)
    if number is None or Path(node.host_path).exists():
        return None
    major = _major(host.proc / "devices", "nvidia-caps")
    if major is None:
        return None
    return DeviceNode(node.path, "", "c", major, int(number[1]), permissions="r")


def _named_on_host(edits: DeviceEdits, root: DriverRoot) -> DeviceEdits:
    """Name files as the container runtime sees them, and not as the agent does."""

    def renamed(one: ContainerEdits) -> ContainerEdits:
        return msgspec.structs.replace(
            one,
            device_nodes=tuple(
                msgspec.structs.replace(node, host_path=root.on_host(node.host_path)) for node in one.device_nodes
            ),
            mounts=tuple(
                msgspec.structs.replace(mount, host_path=root.on_host(mount.host_path)) for mount in one.mounts
            ),
        )

    return replace(edits, own=renamed(edits.own), common=renamed(edits.common))


def _with_numbers(generated: ContainerEdits, own: ContainerEdits) -> ContainerEdits:
    """Set the numbers of nodes that the toolkit lists by path only."""
    by_path = {node.path: node for node in own.device_nodes}
    nodes = tuple(by_path.get(node.path, node) for node in generated.device_nodes)
    return msgspec.structs.replace(generated, device_nodes=nodes)


def driver_version(device: Device) -> tuple[int, ...] | None:
    """Return the running driver's version as numbers (580.65.06 → 580, 65, 6); None if NVML does not report it."""
    attribute = device.attributes.get("driverVersion")
    text = (attribute.version or attribute.string) if attribute is not None else None
    return version_numbers(text) if text else None


def version_numbers(text: str) -> tuple[int, ...]:
    """Return a version as numbers, so that leading zeros do not matter: "535.183.01" → (535, 183, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))


def _major(devices: Path, driver: str) -> int | None:
    """Return a character driver's major number from /proc/devices."""
    try:
        text = devices.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^\s*(\d+) {re.escape(driver)}$", text.partition("Block devices")[0], re.MULTILINE)
    return int(found[1]) if found else None


def make(context: EditContext) -> EditProvider:
    """Create the provider; see dra_agent.inventory.vendors."""
    return NvidiaGpu(context.host, context.directories, context.program_finder("nvidia-ctk"))
