"""The allocation of a ResourceClaim for one driver: its devices with their requests, and its configuration.

It reads and checks the API's JSON. Opaque parameters are only selected here; `config` decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dra_agent.cdi.metadata import POD_CLAIM_ANNOTATION, is_label
from dra_agent.cdi.names import check_uid
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.errors import PermanentError, RetryableError


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str = "default"
    annotations: dict[str, str] | None = None


class _Result(msgspec.Struct, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] | None = None


class _Opaque(msgspec.Struct):
    driver: str
    parameters: Any = None


class _Config(msgspec.Struct):
    source: Literal["FromClass", "FromClaim"] | None = None
    requests: list[str] | None = None
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices | None = None


class _Consumer(msgspec.Struct, rename="camel"):
    uid: str
    resource: str
    api_group: str = ""


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration for this driver, not decoded yet."""

    field: str
    """Its path in the claim: "status.allocation.devices.config[2]"."""
    requests: tuple[str, ...]
    """Requests that it applies to; empty for all."""
    parameters: Any
    from_class: bool = False

    def applies_to(self, results: Iterable[str]) -> bool:
        """Return whether it applies to any of these results; a request name covers its subrequests."""
        return not self.requests or any(
            name in self.requests or name.partition("/")[0] in self.requests for name in results
        )


class ClaimAllocation(ClaimRef, frozen=True):
    """The part of an allocated claim that is for this driver."""

    devices: tuple[ClaimDevice, ...]
    config: tuple[ConfigEntry, ...]
    pod_claim_name: str | None = None
    """The pod's name for the claim, if it was created from a template."""
    pods: tuple[str, ...] = ()
    """UIDs of the pods that it is reserved for; empty if that names others, such as groups of pods."""


def read(claim: Mapping[str, Any], driver: str) -> ClaimAllocation:
    """Return the part of a ResourceClaim that is for `driver`; results and configuration of others are ignored.

    Raises PermanentError for an object that is not a valid allocated claim, RetryableError if it is not allocated yet.
    """
    try:
        parsed = msgspec.convert(claim, _Claim)
    except msgspec.ValidationError as error:
        raise PermanentError(
            f"not a ResourceClaim: {error}", where=_identity(claim), hint="give the object as the API server returns it"
        ) from error
    metadata = parsed.metadata
    check_uid(metadata.uid)
    devices = parsed.status.allocation.devices if parsed.status and parsed.status.allocation else None
    where = f"claim {metadata.namespace}/{metadata.name}"
    if devices is None:
        raise RetryableError("is not allocated", where=where, hint="wait for the scheduler")
    config = tuple(
        ConfigEntry(
            f"status.allocation.devices.config[{index}]",
            tuple(entry.requests or ()),
            entry.opaque.parameters,
            from_class=entry.source == "FromClass",
        )
        for index, entry in enumerate(devices.config or ())
        if entry.opaque is not None and entry.opaque.driver == driver
    )
    pod_claim_name = (metadata.annotations or {}).get(POD_CLAIM_ANNOTATION, "")
    return ClaimAllocation(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        _devices([result for result in devices.results or () if result.driver == driver], where),
        config,
        # Users may write any annotation; this one becomes part of a path.
        pod_claim_name if is_label(pod_claim_name) else None,
        _pods(parsed.status.reserved_for or () if parsed.status else ()),
    )


def _pods(consumers: Sequence[_Consumer]) -> tuple[str, ...]:
    if any(consumer.resource != "pods" or consumer.api_group for consumer in consumers):
        return ()
    return tuple(consumer.uid for consumer in consumers)


def _devices(results: Iterable[_Result], where: str) -> tuple[ClaimDevice, ...]:
    """Merge the results of one device: a claim may hold a device and have admin access to it in addition."""
    found: dict[tuple[str, str, str | None], list[_Result]] = {}
    for result in results:
        known = found.setdefault((result.pool, result.device, result.share_id), [])
        if known and not (result.admin_access or all(other.admin_access for other in known)):
            raise PermanentError(
                f"device {result.device} of pool {result.pool} is allocated to it twice, for requests "
                f"{', '.join(one.request for one in (*known, result))}",
                where=where,
                hint="delete the claim and let it be allocated again",
            )
        known.append(result)
    return tuple(_merged(same) for same in found.values())


def _merged(results: Sequence[_Result]) -> ClaimDevice:
    names = tuple(result.request for result in results)
    requests = tuple(dict.fromkeys(name.partition("/")[0] for name in names))
    consumed: dict[str, str] = {}
    for result in results:
        # A capacity without a domain is one of the driver: both spellings are the same (resource/v1, QualifiedName).
        own = f"{result.driver}/"
        consumed |= {name.removeprefix(own): amount for name, amount in (result.consumed_capacity or {}).items()}
    return ClaimDevice(
        results[0].pool,
        results[0].device,
        requests,
        results[0].share_id,
        all(result.admin_access for result in results),
        consumed,
        results=names if names != requests else (),
    )


def _identity(claim: object) -> str:
    metadata = claim.get("metadata") if isinstance(claim, Mapping) else None
    if not isinstance(metadata, Mapping):
        return "claim"
    return f"claim {metadata.get('namespace', '?')}/{metadata.get('name', '?')}"
