"""How much of the quota of a ClusterQueue of Kueue is free, with what it can borrow from its cohort.

The sums are those of pkg/cache/scheduler/resource_node.go at 8eab68778fc1 for a cohort without a parent and children:
each member lends what it does not use, up to its lending limit, and borrows up to its borrowing limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_cluster.explain.kueue_amount import amount

Key = tuple[str, str]
"""A flavor and a resource."""
_ZERO = Fraction(0)


class QuotaError(Exception):
    """A quota is not known, and why."""


class Quota(NamedTuple):
    """The quota of a resource in a flavor."""

    nominal: Fraction
    borrowing: Fraction | None = None
    """What can be borrowed at most; None: no limit."""
    lending: Fraction | None = None
    """What can be lent at most; None: no limit."""

    @property
    def local(self) -> Fraction:
        """What is never lent."""
        return _ZERO if self.lending is None else max(_ZERO, self.nominal - self.lending)


class Group(NamedTuple):
    """A resource group: pods get all its resources in the same flavor."""

    resources: Sequence[str]
    flavors: Sequence[str]
    """In the order in which Kueue tries them."""


@dataclass
class Queue:
    """The quotas of a ClusterQueue or Cohort."""

    name: str
    cohort: str
    """Empty if it belongs to none."""
    groups: Sequence[Group]
    quotas: Mapping[Key, Quota]
    used: Mapping[Key, Fraction] | None
    """What is reserved; None if it is not known."""


class Available(NamedTuple):
    """What a ClusterQueue has of a resource in a flavor."""

    used: Fraction
    nominal: Fraction
    borrowable: Fraction
    """What it can borrow now beyond its nominal quota."""
    free: Fraction
    """What a Workload can reserve now; negative where more is used than there is quota."""
    maximum: Fraction
    """What a Workload could reserve if nothing was used."""


def queue_of(value: Object) -> Queue:
    """Return the quotas of a ClusterQueue or Cohort whose fields have the types of the API.

    Raises:
        QuotaError: A quota is not a quantity.
    """
    spec, status = value.get("spec") or {}, value.get("status") or {}
    name = str(value["metadata"]["name"])
    groups, quotas = [], {}
    for entry in spec.get("resourceGroups") or ():
        flavors = entry.get("flavors") or ()
        groups.append(Group(list(entry.get("coveredResources") or ()), [str(one.get("name")) for one in flavors]))
        for key, resource in _resources(flavors):
            quotas[key] = Quota(
                _number(name, key, resource, "nominalQuota") or _ZERO,
                _number(name, key, resource, "borrowingLimit"),
                _number(name, key, resource, "lendingLimit"),
            )
    used: dict[Key, Fraction] | None = None
    if isinstance(status.get("flavorsReservation"), list):
        used = {
            key: _number(name, key, resource, "total") or _ZERO
            for key, resource in _resources(status["flavorsReservation"])
        }
    return Queue(name, str(spec.get("cohortName") or spec.get("cohort") or ""), groups, quotas, used)


def _resources(flavors: Iterable[Object]) -> Iterable[tuple[Key, Object]]:
    for flavor in flavors:
        for resource in flavor.get("resources") or ():
            yield (str(flavor.get("name")), str(resource.get("name"))), resource


def _number(name: str, key: Key, holder: Object, field: str) -> Fraction | None:
    value = holder.get(field)
    number = amount(value)
    if value is not None and number is None:
        raise QuotaError(f"{field} of {key[1]} in flavor {key[0]} of {name} is not a quantity")
    return number


def available(queue: Queue, key: Key, cohort: Sequence[Queue], pool: Queue | None) -> Available:
    """Return what a ClusterQueue has.

    Arguments:
        queue: The ClusterQueue.
        key: The flavor and the resource.
        cohort: Every ClusterQueue of its cohort, with itself; empty without a cohort.
        pool: The quota that the cohort has itself, if any.

    Raises:
        QuotaError: The usage of a ClusterQueue is not known.
    """
    quota, used = queue.quotas.get(key, Quota(_ZERO)), _used(queue, key)
    if not cohort:
        return Available(used, quota.nominal, _ZERO, quota.nominal - used, quota.nominal)
    shared = taken = _ZERO
    for member in cohort:
        own = member.quotas.get(key, Quota(_ZERO))
        shared += own.nominal - own.local
        taken += max(_ZERO, _used(member, key) - own.local)
    if pool is not None:
        shared += pool.quotas.get(key, Quota(_ZERO)).nominal
    free, maximum = shared - taken, shared
    if quota.borrowing is not None:
        lent = quota.nominal - quota.local
        free = min(free, lent - max(_ZERO, used - quota.local) + quota.borrowing)
        maximum = min(maximum, lent + quota.borrowing)
    free += max(_ZERO, quota.local - used)
    borrowable = max(_ZERO, free - max(_ZERO, quota.nominal - used))
    return Available(used, quota.nominal, borrowable, free, quota.local + maximum)


def _used(queue: Queue, key: Key) -> Fraction:
    if queue.used is None:
        raise QuotaError(f"ClusterQueue {queue.name} has no status.flavorsReservation")
    return queue.used.get(key, _ZERO)
