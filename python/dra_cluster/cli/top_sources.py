"""Which endpoint the values of a device are taken from: the agent of its node, and one endpoint only.

What an endpoint returns is not trusted further than that: an agent, or a program that responds in its place, cannot
replace the values of another node, and devices that two of them report are not counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dra_agent.inventory.model import is_pool_of

if TYPE_CHECKING:
    from dra_agent.telemetry.control import ClaimValues, DeviceValues
    from dra_cluster.cli.top_endpoints import Endpoint, Reading


class Accepted(NamedTuple):
    """What counts of one reading."""

    devices: tuple[DeviceValues, ...] = ()
    claims: tuple[ClaimValues, ...] = ()
    problems: tuple[str, ...] = ()
    """What was left out, and why."""


def accept(readings: Sequence[Reading]) -> list[Accepted]:
    """Return for each reading what counts of it.

    A pod reports devices of its node only. A given URL may report those of any node; where its name is that of the
    node, it is preferred. Of several endpoints that report the same device, the first one counts.
    """
    chosen: dict[tuple[str, str], tuple[bool, int]] = {}
    for index, reading in enumerate(readings):
        for device in () if reading.values is None else reading.values.devices:
            if not _is_foreign(device, reading.endpoint):
                is_own = is_pool_of(device.pool, reading.endpoint.node)
                key, rank = (device.pool, device.device), (not is_own, index)
                chosen[key] = min(rank, chosen.get(key, rank))
    claims: set[tuple[str, str, str, str]] = set()
    return [_accept(readings, index, chosen, claims) for index in range(len(readings))]


def _is_foreign(device: DeviceValues, endpoint: Endpoint) -> bool:
    return endpoint.is_pod and not is_pool_of(device.pool, endpoint.node)


def _accept(
    readings: Sequence[Reading],
    index: int,
    chosen: dict[tuple[str, str], tuple[bool, int]],
    claims: set[tuple[str, str, str, str]],
) -> Accepted:
    """Return what counts of the reading with this index; `claims` has what counts of those before it."""
    endpoint, values, _ = readings[index]
    if values is None:
        return Accepted()
    devices: list[DeviceValues] = []
    reasons: Counter[str] = Counter()
    for device in values.devices:
        if _is_foreign(device, endpoint):
            reasons["of other nodes"] += 1
        elif (source := chosen[device.pool, device.device][1]) != index:
            reasons[f"that {readings[source].endpoint.shown} reports too"] += 1
        else:
            devices.append(device)
    # A claim may have values on a device that has none.
    left_out = {device.device for device in values.devices} - {device.device for device in devices}
    own: list[ClaimValues] = []
    for claim in values.claims:
        key = (endpoint.node, claim.namespace, claim.name, claim.device)
        if claim.device not in left_out and key not in claims:
            claims.add(key)
            own.append(claim)
    problems = (f"{count} device{'' if count == 1 else 's'} {reason}" for reason, count in reasons.items())
    return Accepted(tuple(devices), tuple(own), tuple(problems))
