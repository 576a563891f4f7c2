"""Evaluates an operator's expressions for devices, once for each device object.

The result of rules depends on nothing but the device and its PCI function, and a changed one is another object.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dra_agent import _native
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import UsageError
from dra_agent.inventory.model import Device, Exclusion


class Rule:
    """One compiled expression, and the devices that it was evaluated for."""

    def __init__(self, where: str, expression: str) -> None:
        """Compile it; `where` is its place in the section. UsageError where it does not compile."""
        self.where = where
        self.text = expression
        self._failures: dict[str, str | None] = {}
        """By device: why it had no value; None if it had one."""
        try:
            self._compiled = _native.CelExpression.selector(expression)
        except ValueError as error:
            raise UsageError(
                f"{expression!r} does not compile: {error}",
                where=f"configuration, inventory.{where}",
                hint="correct it",
            ) from None

    def matches(self, driver: str, device: Device) -> bool:
        """Return True if the expression is true; a device for which it has no value does not match."""
        try:
            matched = self._compiled.matches(driver, device.json)
        except ValueError as error:
            self._failures[device.name] = str(error)
            return False
        self._failures[device.name] = None
        return matched

    def forget(self, devices: Iterable[str]) -> None:
        """Drop the results of these devices."""
        for name in devices:
            self._failures.pop(name, None)

    def failure(self, devices: Container[str]) -> str | None:
        """Return why it had no value for any of the devices that it was evaluated for; forget the other devices."""
        self._failures = {name: reason for name, reason in self._failures.items() if name in devices}
        reasons = sorted((name, reason) for name, reason in self._failures.items() if reason is not None)
        return reasons[0][1] if reasons and len(reasons) == len(self._failures) else None


def never_evaluated(rules: Iterable[Rule], devices: Container[str]) -> Iterator[Diagnostic]:
    """Report the rules that had no value for any of the devices: they are likely misspelled."""
    for rule in rules:
        if (failure := rule.failure(devices)) is not None:
            yield Diagnostic(
                f"inventory.{rule.where}",
                f"{rule.text!r} has no value for any device: {failure}",
                "check the attribute's name; `dra-agent devices NAME` shows the attributes of a device",
                severity="warning",
            )


def without_effect(rules: Iterable[Rule], driver: str, devices: Mapping[str, Device]) -> Iterator[Diagnostic]:
    """Report the rules that are true for none of the devices, given by name; nothing on a host without such devices."""
    for rule in rules:
        if not devices or any([rule.matches(driver, device) for device in devices.values()]):  # noqa: C419
            continue
        misspelled = list(never_evaluated([rule], devices))
        yield from misspelled or [
            Diagnostic(
                f"inventory.{rule.where}",
                f"{rule.text!r} is true for no device of this host, so it allows none",
                "`dra-agent devices NAME` shows the attributes of a device",
                severity="warning",
            )
        ]


class RuleResult(NamedTuple):
    """Result of the rules for one device."""

    device: Device | None
    """None: it is not published."""
    problems: Sequence[Diagnostic] = ()
    excluded: Sequence[Exclusion] = ()


class Evaluation(NamedTuple):
    """Result of the rules for all devices."""

    published: list[Device]
    problems: list[Diagnostic]
    excluded: list[Exclusion]


class RuleResults:
    """Results of some rules, kept for devices that stay the same object."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[Device, RuleResult]] = {}

    def evaluate(self, devices: Iterable[Device], apply_rules: Callable[[Device], RuleResult]) -> Evaluation:
        """Return the result for these devices; `apply_rules` is called for one that is not known."""
        found = Evaluation([], [], [])
        if not self._rules:
            found.published.extend(devices)
            return found
        before, self._known = self._known, {}
        for device in devices:
            known = before.get(device.name)
            if known is None or known[0] is not device:
                for rule in self._rules:
                    rule.forget([device.name])
                known = (device, apply_rules(device))
            self._known[device.name] = known
            result = known[1]
            if result.device is not None:
                found.published.append(result.device)
            found.problems.extend(result.problems)
            found.excluded.extend(result.excluded)
        found.problems.extend(never_evaluated(self._rules, self._known))
        return found
