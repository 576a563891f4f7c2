"""The CDI spec of one claim: the edits of its devices, put together, and the ids that runtimes are given.

What a device of a vendor needs is a recipe's to say; where the spec is kept is the directory's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_agent.cdi.edits import DeviceEdits
from dra_agent.cdi.model import ContainerEdits, Device, Spec, encode
from dra_agent.cdi.names import CLAIM_CLASS, claim_device
from dra_agent.cdi.validate import problems, warnings
from dra_agent.cdi.version import minimum_version
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device as HostDevice
from dra_agent.printable import printable

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SpecDevice:
    """A device as one claim holds it."""

    device: HostDevice
    edits: DeviceEdits
    requests: tuple[str, ...]
    """Names of the requests that it answers, without the subrequest."""
    share_id: str | None = None
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)
    """What the claim may use of a shared device (Quantity texts)."""


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim's spec, ready to be written."""

    spec: Spec
    data: bytes
    ids: tuple[tuple[str, ...], ...]
    """For each device, in the order given, the qualified names to inject."""
    notes: tuple[tuple[str, ...], ...]
    """For each device what a container will miss, in plain words; empty where nothing."""


def build_spec(driver: str, uid: str, namespace: str, name: str, devices: Sequence[SpecDevice]) -> ClaimSpec:
    """Build the spec of a claim; PermanentError where no loader would take the result."""
    claim = f"{namespace}/{name}"
    members = _members(devices)
    shared = _shared(devices)
    parts: list[Device] = []
    ids: list[tuple[str, ...]] = []
    for held in devices:
        cdi_name = claim_device(uid, held.device.name, held.share_id)
        edits = ContainerEdits(env=_environment(claim, held, members))
        if not shared:
            edits = edits.merged(held.edits.common)
        edits = edits.merged(held.edits.own)
        parts.append(Device(cdi_name, edits))
        ids.append((*held.edits.foreign_ids, f"{driver}/{CLAIM_CLASS}={cdi_name}"))
    common = ContainerEdits(env=(f"DRA_AGENT_CLAIM={claim}",))
    _check_lines(
        [text for edits in (common, *(part.container_edits for part in parts)) for text in edits.env], claim, uid
    )
    if shared:
        common = common.merged(shared)
    draft = Spec("", f"{driver}/{CLAIM_CLASS}", tuple(parts), container_edits=common)
    spec = Spec(minimum_version(draft), draft.kind, draft.devices, container_edits=common)
    refused = problems(spec) + warnings(spec)
    if refused:
        raise PermanentError(
            f"its CDI spec would be refused: {'; '.join(refused)}",
            where=f"claim {claim} ({uid})",
            hint="report this, with the claim and its device",
        )
    return ClaimSpec(spec, encode(spec), tuple(ids), tuple(held.edits.notes for held in devices))


def _check_lines(variables: Sequence[str], claim: str, uid: str) -> None:
    """Refuse control characters: a line feed begins another variable for whoever keeps variables in lines."""
    for text in variables:
        if _CONTROL.search(text):
            raise PermanentError(
                f"a variable for its containers has control characters: {printable(text, line=True, longest=128)}",
                where=f"claim {printable(claim, line=True, longest=128)} ({uid})",
                hint="take names as the API server accepts them",
            )


def _shared(devices: Sequence[SpecDevice]) -> ContainerEdits | None:
    """Find the common edits that all devices agree on: a runtime then applies them once, hooks included."""
    first = devices[0].edits.common if devices else ContainerEdits()
    return first if first and all(held.edits.common == first for held in devices) else None


def _members(devices: Sequence[SpecDevice]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for held in devices:
        for request in held.requests:
            names = members.setdefault(request, [])
            if held.device.name not in names:
                names.append(held.device.name)
    return members


def _environment(claim: str, held: SpecDevice, members: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Tell the container what it holds: a variable per device, so that several claims never hide one another's."""
    prefix = f"DRA_AGENT_DEVICE_{env_name(held.device.name)}"
    env = {prefix: ",".join(f"{claim}/{request}" for request in held.requests)}
    env[f"{prefix}_PCI"] = held.device.pci_address
    for key in ("uuid", "ifname", "rdma"):
        if value := held.device.identity.get(key):
            env[f"{prefix}_{key.upper()}"] = value
    for capacity, amount in sorted(held.consumed_capacity.items()):
        if amount != "0":  # a capacity that a share has no part in
            env[f"{prefix}_CAPACITY_{env_name(capacity)}"] = amount
    if held.edits.notes:
        # A variable rather than an annotation, which needs CDI 0.6.0: podman 4 drops such a file.
        env[f"{prefix}_NOTE"] = "; ".join(held.edits.notes)
    for request in held.requests:
        env[f"DRA_AGENT_REQUEST_{env_name(request)}"] = ",".join(members[request])
    return tuple(f"{key}={value}" for key, value in env.items())


def env_name(name: str) -> str:
    """Turn a name into the part of an environment variable's name: "gpu-0" → "GPU_0"."""
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()
