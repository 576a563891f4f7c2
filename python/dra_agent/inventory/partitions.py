"""Which whole devices are offered in partitions, too, as the operator's rules say; how is each back end's to know.

A partition and the whole device that it is a part of draw on one counter set, so that the scheduler never gives both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.model import Device, Diagnostic
from dra_agent.inventory.rules import Rule, encode, never_evaluated
from dra_agent.inventory.settings import PartitionRule


class PartitionRules:
    """The partition rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(self, rules: Sequence[PartitionRule], driver: str) -> None:
        self._driver = driver
        self._rules = [(Rule(f"partition[{number}].when", rule.when), rule) for number, rule in enumerate(rules)]

    def begin(self) -> None:
        """Forget what the rules found at other devices."""
        for compiled, _ in self._rules:
            compiled.begin()

    def has_mode(self, mode: str) -> bool:
        """Whether any rule offers partitions of this mode."""
        return any(rule.mode == mode for _, rule in self._rules)

    def rule_for(self, whole: Device, mode: str) -> PartitionRule | None:
        """Give the rule by which a whole device is offered in partitions of this mode; None: it is not."""
        of_mode = [(compiled, rule) for compiled, rule in self._rules if rule.mode == mode]
        if not of_mode:
            return None
        encoded = encode(whole)
        # Every rule is asked, so that one that has no value anywhere is noticed.
        matching = [rule for compiled, rule in of_mode if compiled.matches(self._driver, encoded)]
        return matching[0] if matching else None

    def problems(self) -> list[Diagnostic]:
        """Report the rules that had no value for any device since `begin`."""
        return list(never_evaluated(compiled for compiled, _ in self._rules))


def used_counter_sets(devices: Iterable[Device], sets: Iterable[CounterSet]) -> tuple[CounterSet, ...]:
    """Give the counter sets that any of the devices consumes: one without consumers would be a slice about nothing."""
    names = {consumption.counter_set for device in devices for consumption in device.consumes_counters}
    return tuple(counters for counters in sets if counters.name in names)
