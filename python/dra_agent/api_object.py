"""Objects of the Kubernetes API as JSON values: the identity of each; requests, allocation and consumers of a claim.

For parts that show a claim or decide about it. `prepare.allocation` decodes what the agent prepares, strictly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

DEFAULT_NAMESPACE = "default"


def identity_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return the namespace and the name of an object that has a namespace."""
    metadata = value.get("metadata") or {}
    return metadata.get("namespace") or DEFAULT_NAMESPACE, metadata.get("name") or ""


def full_name(value: Mapping[str, Any]) -> str:
    """Return NAMESPACE/NAME of an object that has a namespace."""
    return "/".join(identity_of(value))


def requests_of(claim: Mapping[str, Any]) -> list[Object]:
    """Return the requests of a claim."""
    return list(((claim.get("spec") or {}).get("devices") or {}).get("requests") or ())


def subrequests_of(claim: Mapping[str, Any]) -> list[Object]:
    """Return what the requests of a claim request: `exactly`, or each alternative."""
    return [
        one
        for request in requests_of(claim)
        for one in ([request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ())
    ]


def allocation_of(claim: Mapping[str, Any]) -> Object | None:
    """Return the allocation of a claim; None before it is allocated."""
    allocation: Object | None = (claim.get("status") or {}).get("allocation")
    return allocation


def results_of(claim: Mapping[str, Any], driver: str | None = None) -> list[Object]:
    """Return the devices of an allocated claim as its allocation has them; `driver`: only those of this driver."""
    results: list[Object] = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or []
    return results if driver is None else [result for result in results if result.get("driver") == driver]


def device_of(result: Mapping[str, Any]) -> tuple[object, ...]:
    """Return driver, pool and name of an allocated device."""
    return result.get("driver"), result.get("pool"), result.get("device")


def consumers_of(claim: Mapping[str, Any]) -> list[Object]:
    """Return what a claim is reserved for: pods, or groups of pods, as the API names them."""
    consumers: list[Object] = (claim.get("status") or {}).get("reservedFor") or []
    return consumers


def is_pod(consumer: Mapping[str, Any]) -> bool:
    """Return whether a consumer of a claim is a pod."""
    return consumer.get("resource") == "pods" and not consumer.get("apiGroup")
