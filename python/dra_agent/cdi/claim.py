"""The CDI spec of one claim: the edits of its devices and the device ids for container runtimes.

The edits of a device come from its vendor's provider (`edits`); `directory` writes the spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_agent.cdi.edits import DeviceEdits
from dra_agent.cdi.model import ContainerEdits, Device, Spec, encode
from dra_agent.cdi.names import CLAIM_CLASS, claim_device
from dra_agent.cdi.validate import minimum_version, problems, warnings
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device as HostDevice
from dra_agent.printable import printable

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class SpecDevice:
    """A device of the claim with the edits that containers need for it."""

    allocated: ClaimDevice
    device: HostDevice
    edits: DeviceEdits


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim's spec, ready to be written."""

    spec: Spec
    data: bytes
    ids: tuple[tuple[str, ...], ...]
    """For each device, in the order given, the qualified names to inject."""
    notes: tuple[tuple[str, ...], ...]
    """For each device the parts that a container lacks, for users; empty if none."""


def build_spec(driver: str, claim: ClaimRef, devices: Sequence[SpecDevice]) -> ClaimSpec:
    """Build the spec of a claim. Raises PermanentError if runtimes would reject the result."""
    members = _members(devices)
    shared = _shared(devices)
    parts: list[Device] = []
    ids: list[tuple[str, ...]] = []
    for item in devices:
        cdi_name = claim_device(claim.uid, item.allocated.device, item.allocated.share_id)
        edits = ContainerEdits(env=_environment(claim.full_name, item, members))
        if not shared:
            edits = edits.merged(item.edits.common)
        edits = edits.merged(item.edits.own)
        parts.append(Device(cdi_name, edits))
        ids.append((*item.edits.foreign_ids, f"{driver}/{CLAIM_CLASS}={cdi_name}"))
    common = ContainerEdits(env=(f"DRA_AGENT_CLAIM={claim.full_name}",))
    _check_variables(
        [text for edits in (common, *(part.container_edits for part in parts)) for text in edits.env], claim
    )
    if shared:
        common = common.merged(shared)
    draft = Spec("", f"{driver}/{CLAIM_CLASS}", tuple(parts), container_edits=common)
    spec = Spec(minimum_version(draft), draft.kind, draft.devices, container_edits=common)
    rejections = problems(spec) + warnings(spec)
    if rejections:
        raise PermanentError(
            f"its CDI spec would be refused: {'; '.join(rejections)}",
            where=claim.with_uid,
            hint="report this, with the claim and its device",
        )
    return ClaimSpec(spec, encode(spec), tuple(ids), tuple(item.edits.notes for item in devices))


def _check_variables(variables: Sequence[str], claim: ClaimRef) -> None:
    """Reject control characters: a line feed starts another variable in files with one variable per line."""
    # One search for all: a claim has about ten variables, and none of them has such a character.
    if not _CONTROL_CHARACTERS.search(" ".join(variables)):
        return
    for text in variables:
        if _CONTROL_CHARACTERS.search(text):
            name = printable(claim.full_name, line=True, longest=128)
            raise PermanentError(
                f"a variable for its containers has control characters: {printable(text, line=True, longest=128)}",
                where=f"claim {name} ({claim.uid})",
                hint="take names as the API server accepts them",
            )


def _shared(devices: Sequence[SpecDevice]) -> ContainerEdits | None:
    """Return the common edits if all devices have the same: a runtime then applies them once, hooks included."""
    first = devices[0].edits.common if devices else ContainerEdits()
    return first if first and all(item.edits.common == first for item in devices) else None


def _members(devices: Sequence[SpecDevice]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for item in devices:
        for request in item.allocated.requests:
            names = members.setdefault(request, [])
            if item.allocated.device not in names:
                names.append(item.allocated.device)
    return members


def _environment(claim_name: str, item: SpecDevice, members: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the variables of a device; their names contain the device's, so that claims never overwrite each other."""
    allocated = item.allocated
    prefix = f"DRA_AGENT_DEVICE_{env_name(allocated.device)}"
    env = {prefix: ",".join(f"{claim_name}/{request}" for request in allocated.requests)}
    env[f"{prefix}_PCI"] = item.device.pci_address
    for key in ("uuid", "ifname", "rdma"):
        if value := item.device.identity.get(key):
            env[f"{prefix}_{key.upper()}"] = value
    for capacity, amount in sorted(allocated.consumed_capacity.items()):
        if amount != "0":  # a capacity that the share does not consume
            env[f"{prefix}_CAPACITY_{env_name(capacity)}"] = amount
    if item.edits.notes:
        # A variable, not an annotation: annotations need CDI 0.6.0, and podman 4 rejects such a file.
        env[f"{prefix}_NOTE"] = "; ".join(item.edits.notes)
    for request in allocated.requests:
        env[f"DRA_AGENT_REQUEST_{env_name(request)}"] = ",".join(members[request])
    return tuple(f"{key}={value}" for key, value in env.items())


def env_name(name: str) -> str:
    """Return a name as a part of an environment variable's name: "gpu-0" is "GPU_0"."""
    return _NOT_IN_NAMES.sub("_", name).upper()
