"""Compiles the operator's rules for overhead: memory or CPU of the node that each pod with a device costs (KEP-5517).

Only this overhead is published: no device here is itself a CPU or memory (`mapping`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dra_agent import _native
from dra_agent.errors import UsageError
from dra_agent.inventory.api import Overhead
from dra_agent.inventory.evaluation import Rule
from dra_agent.inventory.settings import OverheadRule

_RESOURCE = re.compile(r"cpu|memory|hugepages-[0-9]+[EPTGMK]i")
"""Resources that a device may cost (k8s.io/kubernetes/pkg/apis/core/helper, IsNodeAllocatableResourceName)."""


def compile_overhead(number: int, rule: OverheadRule) -> tuple[Rule, dict[str, Overhead]]:
    """Return a rule, compiled, and the overhead by resource; raises UsageError where it can never work."""
    where = f"overhead[{number}]"
    _check(where, "per_pod", rule.per_pod)
    _check(where, "per_container", rule.per_container)
    names = sorted(rule.per_pod.keys() | rule.per_container.keys())
    if not names:
        raise _wrong(where, "the rule has no amount", "set per_pod, per_container or both")
    costs = {name: Overhead(rule.per_pod.get(name), rule.per_container.get(name)) for name in names}
    return Rule(f"{where}.when", rule.when), costs


def _check(where: str, field: str, amounts: Mapping[str, str]) -> None:
    for name, amount in amounts.items():
        place = f"{where}.{field}.{name}"
        if not _RESOURCE.fullmatch(name):
            raise _wrong(place, f"{name!r} is not a resource of a node", "use cpu, memory or hugepages-SIZE")
        try:
            negative = _native.quantity_compare(amount, "0") < 0
        except ValueError as error:
            raise _wrong(place, f"{amount!r}: {error}", "write an amount such as 512Mi") from None
        if negative:
            raise _wrong(place, f"{amount!r} is negative", "write an amount such as 512Mi")


def _wrong(where: str, message: str, hint: str) -> UsageError:
    return UsageError(message, where=f"configuration, inventory.{where}", hint=hint)
