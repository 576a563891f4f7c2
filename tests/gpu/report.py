"""What nvidia-smi reports of GPUs, and where an inventory differs from it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from dra_agent.inventory.api import Capacity
from dra_agent.inventory.model import Inventory

_UNKNOWN = frozenset({"N/A", "[N/A]", "[Not Supported]", "Not Supported", "", "Unknown Error"})


@dataclass(frozen=True, slots=True)
class ReportedGpu:
    """One GPU of `nvidia-smi -q -x`; None is what it does not report."""

    address: str
    """As sysfs writes it."""
    uuid: str | None
    name: str | None
    brand: str | None
    architecture: str | None
    minor: str | None
    memory_mib: int | None
    mig: bool
    instances: frozenset[tuple[str, str]]
    """MIG devices: numbers of GPU instance and compute instance. The report does not have their UUIDs."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report."""

    driver: str | None
    cuda: str | None
    gpus: tuple[ReportedGpu, ...]


def address(bus_id: str) -> str:
    """Write a bus id as sysfs does: "00000000:1B:00.0" is 0000:1b:00.0."""
    domain, _, rest = bus_id.strip().partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def read(text: str) -> Report:
    """Read `nvidia-smi -q -x`."""
    # The document of the driver's own tool on this machine is trusted.
    root = ElementTree.fromstring(text)
    return Report(
        _text(root, "driver_version"), _text(root, "cuda_version"), tuple(_gpu(gpu) for gpu in root.iter("gpu"))
    )


def differences(inventory: Inventory, report: Report) -> list[str]:
    """Return where the inventory and the report differ: a line for each difference."""
    found: list[str] = []
    whole = {device.pci_address: device for device in inventory.family("gpu") if "parent" not in device.identity}
    nvidia = {name for name, device in whole.items() if device.vendor == "nvidia" and device.identity.get("uuid")}
    reported = {gpu.address for gpu in report.gpus if not gpu.mig}
    found += [f"{name}: nvidia-smi reports it, the inventory does not" for name in sorted(reported - nvidia)]
    found += [f"{name}: the inventory has it, nvidia-smi does not" for name in sorted(nvidia - reported)]
    for gpu in report.gpus:
        ours = {
            (device.identity["gpu_instance"], device.identity["compute_instance"])
            for device in inventory.family("gpu")
            if device.pci_address == gpu.address and "gpu_instance" in device.identity
        }
        for names, only in ((gpu.instances - ours, "the inventory"), (ours - gpu.instances, "nvidia-smi")):
            found += [f"{gpu.address}: MIG device {'/'.join(one)} is missing in {only}" for one in sorted(names)]
        device = whole.get(gpu.address)
        if device is None or gpu.mig:
            continue
        attributes = {name: str(attribute.value) for name, attribute in device.attributes.items()}
        memory = device.capacity.get("memory")
        pairs = {
            "uuid": (device.identity.get("uuid"), gpu.uuid),
            "productName": (attributes.get("productName"), gpu.name),
            "architecture": (_plain(attributes.get("architecture")), _plain(gpu.architecture)),
            "brand": (_plain(attributes.get("brand")), _plain(gpu.brand)),
            "minor": (device.identity.get("minor"), gpu.minor),
            "node": (next((node.path for node in device.nodes if node.role == "gpu"), None), f"/dev/nvidia{gpu.minor}"),
            "memory": (memory.value if memory else None, _mib(gpu.memory_mib)),
            "driverVersion": (attributes.get("driverVersion"), _version(report.driver)),
            "cudaDriverVersion": (attributes.get("cudaDriverVersion"), _version(report.cuda)),
        }
        found += [
            f"{gpu.address}: {what}: the inventory has {own!r}, nvidia-smi {theirs!r}"
            for what, (own, theirs) in pairs.items()
            if theirs is not None and own != theirs
        ]
    return found


def mig_uuids(listing: str) -> set[str]:
    """Read the UUIDs of MIG devices from `nvidia-smi -L`: "  MIG 1g.10gb     Device  0: (UUID: MIG-...)"."""
    return set(re.findall(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)", listing, re.MULTILINE))


def _gpu(gpu: ElementTree.Element) -> ReportedGpu:
    memory = _text(gpu, "fb_memory_usage/total")
    devices = [(_text(one, "gpu_instance_id"), _text(one, "compute_instance_id")) for one in gpu.iter("mig_device")]
    return ReportedGpu(
        address=address(gpu.get("id", "")),
        uuid=_text(gpu, "uuid"),
        name=_text(gpu, "product_name"),
        brand=_text(gpu, "product_brand"),
        architecture=_text(gpu, "product_architecture"),
        minor=_text(gpu, "minor_number"),
        memory_mib=int(memory.removesuffix(" MiB")) if memory else None,
        mig=_text(gpu, "mig_mode/current_mig") == "Enabled",
        instances=frozenset((one, other) for one, other in devices if one is not None and other is not None),
    )


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in _UNKNOWN else text


def _plain(text: str | None) -> str | None:
    """Compare names of products' lines without spaces and case: "NVIDIA RTX" is NvidiaRTX."""
    if text is None:
        return None
    plain = "".join(text.split()).lower()
    return {"adalovelace": "ada"}.get(plain.replace("nvidiaampere", "ampere"), plain)


def _mib(count: int | None) -> str | None:
    return Capacity.of_bytes(count << 20).value if count else None


def _version(text: str | None) -> str | None:
    """Write a version as the API has it: three numbers without leading zeroes."""
    if text is None:
        return None
    numbers = [str(int(part)) for part in text.split(".")]
    return ".".join([*numbers, "0", "0"][: max(3, len(numbers))])
