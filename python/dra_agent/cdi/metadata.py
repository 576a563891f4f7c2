"""What a container can read of its devices: the document of one request, and where containers find it (KEP-5304).

Shape and paths are those of `k8s.io/dynamic-resource-allocation/api/metadata` v0.37: a stream of JSON objects, one per
version of the API, newest first. Where the agent keeps the files is `metadata_files`' to know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_agent.cdi.model import Mount
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device
from dra_agent.inventory.network_data import network_data

API_VERSION = "metadata.resource.k8s.io/v1beta1"
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On claims made from a template: what the pod calls the claim, which its containers know, unlike the claim's name."""
_CONTAINER_DIR = "/var/run/kubernetes.io/dra-device-attributes"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class ClaimIdentity:
    """The claim that devices are described for."""

    uid: str
    namespace: str
    name: str
    pod_claim_name: str | None = None


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """One request of the claim with the devices that answer it."""

    request: str
    """Without the subrequest: paths are made of it."""
    result: str
    """As the allocation names it: "gpus", or "gpus/h100" where a subrequest was chosen."""
    devices: tuple[tuple[str, Device], ...]
    """With their pools."""


def is_label(name: str) -> bool:
    """Tell whether a name is a DNS label, and so safe in a path."""
    return bool(_LABEL.fullmatch(name))


def document(driver: str, claim: ClaimIdentity, request: RequestMetadata, generation: int) -> bytes:
    """Write the stream of one request."""
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    value: dict[str, Any] = {"kind": "DeviceMetadata", "apiVersion": API_VERSION, "metadata": metadata}
    if claim.pod_claim_name is not None:
        value["podClaimName"] = claim.pod_claim_name
    devices = [_device(driver, pool, device) for pool, device in request.devices]
    value["requests"] = [{"name": request.result, "devices": devices}]
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def generation_of(data: bytes) -> int | None:
    """Read the generation of a stream that this agent wrote; None where it is none."""
    try:
        return msgspec.json.decode(data, type=_Document).metadata.generation
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def mount(driver: str, claim: ClaimIdentity, request: str, host_path: str) -> Mount:
    """Say where a container sees the file of a request; PermanentError for names that could leave the directory."""
    for what, name, pattern in (("request", request, _LABEL), ("claim", claim.name, _SUBDOMAIN)):
        if not pattern.fullmatch(name):
            raise PermanentError(
                f"{what} name {name!r} cannot be part of a path",
                where=f"claim {claim.namespace}/{claim.name} ({claim.uid})",
                hint="use lower-case letters, digits and '-'",
            )
    if claim.pod_claim_name is not None:
        folder = f"resourceclaimtemplates/{claim.pod_claim_name}"
    else:
        folder = f"resourceclaims/{claim.name}"
    return Mount(host_path, f"{_CONTAINER_DIR}/{folder}/{request}/{driver}-metadata.json", options=("ro", "bind"))


def group_by_request(
    devices: Sequence[tuple[Sequence[str], str, Device]],
) -> tuple[tuple[RequestMetadata, ...], tuple[tuple[str, ...], ...]]:
    """Sort (results, pool, device) by request; and say for each device which requests' files it brings.

    The first device of a request brings the file, as upstream does: every container with the request gets that one.
    """
    found: dict[str, RequestMetadata] = {}
    brings: list[tuple[str, ...]] = []
    for results, pool, device in devices:
        new = []
        for result in results:
            request = result.partition("/")[0]
            known = found.get(request)
            if known is None:
                new.append(request)
                known = RequestMetadata(request, result, ())
            found[request] = RequestMetadata(request, known.result, (*known.devices, (pool, device)))
        brings.append(tuple(new))
    return tuple(found.values()), tuple(brings)


class _Meta(msgspec.Struct):
    generation: int


class _Document(msgspec.Struct):
    metadata: _Meta


def _device(driver: str, pool: str, device: Device) -> dict[str, Any]:
    value: dict[str, Any] = {"driver": driver, "pool": pool, "name": device.name}
    if device.attributes:
        value["attributes"] = device.attributes
    if network := network_data(device):
        value["networkData"] = network
    return value
