"""What a ResourceClaim's allocation gives to one driver: its devices with their requests, and its configuration.

It reads the API's JSON and checks it; configuration is only sorted out here, `config` understands it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dra_agent.cdi.metadata import POD_CLAIM_ANNOTATION, is_label
from dra_agent.cdi.names import check_uid
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


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that the claim was given, or one share of it."""

    pool: str
    device: str
    results: tuple[str, ...]
    """Requests as the allocation names them: "gpus", or "gpus/h100" where a subrequest was chosen."""
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: Mapping[str, str] | None = None

    @property
    def requests(self) -> tuple[str, ...]:
        """Give the requests as the kubelet knows them, without the subrequest."""
        return tuple(dict.fromkeys(request.partition("/")[0] for request in self.results))


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One piece of configuration for this driver, not yet understood."""

    field: str
    """Where it is in the claim: "status.allocation.devices.config[2]"."""
    requests: tuple[str, ...]
    """Requests that it is for; none means all."""
    parameters: Any

    def applies_to(self, results: Iterable[str]) -> bool:
        """Tell whether it is for any of these results; naming a request covers its subrequests."""
        return not self.requests or any(
            name in self.requests or name.partition("/")[0] in self.requests for name in results
        )


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """One driver's part of an allocated claim."""

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    config: tuple[ConfigEntry, ...]
    pod_claim_name: str | None = None
    """What its pod calls the claim, where it was made from a template."""

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


def read(claim: Mapping[str, Any], driver: str) -> ClaimAllocation:
    """Take out of a ResourceClaim what is for `driver`; other drivers' devices in it are theirs to prepare.

    PermanentError for an object that is no allocated claim's shape, RetryableError for one not allocated yet.
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
    if devices is None:
        raise RetryableError(
            "is not allocated", where=f"claim {metadata.namespace}/{metadata.name}", hint="wait for the scheduler"
        )
    config = tuple(
        ConfigEntry(f"status.allocation.devices.config[{index}]", tuple(entry.requests or ()), entry.opaque.parameters)
        for index, entry in enumerate(devices.config or ())
        if entry.opaque is not None and entry.opaque.driver == driver
    )
    where = f"claim {metadata.namespace}/{metadata.name}"
    held = _grouped([result for result in devices.results or () if result.driver == driver], where)
    pod_claim_name = (metadata.annotations or {}).get(POD_CLAIM_ANNOTATION, "")
    return ClaimAllocation(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        held,
        config,
        # Anybody may write an annotation; this one becomes part of a path.
        pod_claim_name if is_label(pod_claim_name) else None,
    )


def _grouped(results: Iterable[_Result], where: str) -> tuple[AllocatedDevice, ...]:
    """Put results of one device together: a claim may hold a device and watch it with admin access besides."""
    found: dict[tuple[str, str, str | None], AllocatedDevice] = {}
    for result in results:
        key = (result.pool, result.device, result.share_id)
        admin = bool(result.admin_access)
        other = found.get(key)
        if other is not None and not (admin or other.admin_access):
            raise PermanentError(
                f"device {result.device} of pool {result.pool} is allocated to it twice, for requests "
                f"{', '.join((*other.results, result.request))}",
                where=where,
                hint="delete the claim and let it be allocated again",
            )
        found[key] = AllocatedDevice(
            result.pool,
            result.device,
            (*(other.results if other else ()), result.request),
            result.share_id,
            admin and (other is None or other.admin_access),
            {**((other.consumed_capacity if other else None) or {}), **(result.consumed_capacity or {})} or None,
        )
    return tuple(found.values())


def _identity(claim: object) -> str:
    metadata = claim.get("metadata") if isinstance(claim, Mapping) else None
    if not isinstance(metadata, Mapping):
        return "claim"
    return f"claim {metadata.get('namespace', '?')}/{metadata.get('name', '?')}"
