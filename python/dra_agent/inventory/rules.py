"""Applies an operator's rules to devices: which are published, and which attributes are added.

An expression has the same variables as a claim's selector: `device.driver`, `device.attributes`, `device.capacity`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dra_agent import _native
from dra_agent.errors import UsageError
from dra_agent.inventory.api import Attribute, CounterSet
from dra_agent.inventory.builder import MAX_ENTRIES
from dra_agent.inventory.model import Device, Diagnostic, Exclusion
from dra_agent.inventory.settings import InventorySettings, PartitionRule, VersionValue

BUILT_IN = frozenset(
    {
        "architecture",
        "brand",
        "computePartition",
        "computeUnits",
        "cudaComputeCapability",
        "cudaDriverVersion",
        "deviceID",
        "driver",
        "driverVersion",
        "ofaEngines",
        "jpegEngines",
        "encoders",
        "execQuantumMs",
        "decoders",
        "copyEngines",
        "fabricClique",
        "fabricDomain",
        "ifName",
        "iommuGroup",
        "isSriovVf",
        "linkSpeed",
        "linkType",
        "logicCells",
        "mac",
        "memory",
        "memoryEnforcement",
        "memoryPartition",
        "mtu",
        "multiprocessors",
        "neuronCores",
        "parentUUID",
        "pcieGeneration",
        "pcieSwitch",
        "pcieWidth",
        "preemptTimeoutUs",
        "productName",
        "profile",
        "rdma",
        "rdmaDevice",
        "schedPriority",
        "sriovVfs",
        "state",
        "tensorCores",
        "type",
        "uuid",
        "vendor",
        "vendorID",
    }
)
"""Names of the agent's attributes, which an operator's attribute must not use."""

STANDARD_DOMAINS = ("kubernetes.io", "k8s.io")

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Rule:
    """One compiled expression, and the number of its values."""

    def __init__(self, where: str, expression: str) -> None:
        """Compile it; `where` is its place in the section. UsageError where it does not compile."""
        self.where = where
        self.text = expression
        self.answers = 0
        self.failures: list[str] = []
        try:
            self._compiled = _native.CelExpression.selector(expression)
        except ValueError as error:
            raise UsageError(
                f"{expression!r} does not compile: {error}",
                where=f"configuration, inventory.{where}",
                hint="correct it",
            ) from None

    def begin(self) -> None:
        """Reset the results of other devices."""
        self.answers, self.failures = 0, []

    def matches(self, driver: str, device: bytes) -> bool:
        """Return True if the expression is true; a device for which it has no value does not match."""
        try:
            matched = self._compiled.matches(driver, device)
        except ValueError as error:
            self.failures.append(str(error))
            return False
        self.answers += 1
        return matched


def never_evaluated(rules: Iterable[Rule]) -> Iterator[Diagnostic]:
    """Report the rules that had no value for any device: they are likely misspelled."""
    for rule in rules:
        if rule.failures and not rule.answers:
            yield Diagnostic(
                f"inventory.{rule.where}",
                f"{rule.text!r} has no value for any device: {rule.failures[0]}",
                "check the attribute's name; `dra-agent devices NAME` shows the attributes of a device",
                severity="warning",
            )


class Rules:
    """The rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(self, settings: InventorySettings, driver: str) -> None:
        self._driver = driver
        self._include = [Rule(f"include[{n}]", text) for n, text in enumerate(settings.include)]
        self._exclude = [Rule(f"exclude[{n}]", text) for n, text in enumerate(settings.exclude)]
        self._attributes = []
        for number, rule in enumerate(settings.attributes):
            where = f"attributes[{number}]"
            values = {name: _value(driver, where, name, value) for name, value in rule.set.items()}
            self._attributes.append((Rule(f"{where}.when", rule.when), values))

    def apply(
        self, devices: Iterable[Device], problems: list[Diagnostic], excluded: list[Exclusion]
    ) -> tuple[Device, ...]:
        """Return the published devices with the operator's attributes. Attributes are set before devices are selected.

        So an operator's own attribute can be used in `include` and `exclude`.
        """
        every = [*self._include, *self._exclude, *(rule for rule, _ in self._attributes)]
        for rule in every:
            rule.begin()
        kept = []
        for device in devices:
            extended = self._with_attributes(device, problems)
            reason = self._reason(extended)
            if reason is None:
                kept.append(extended)
            else:
                excluded.append(Exclusion(device.name, reason))
        problems.extend(never_evaluated(every))
        return tuple(kept)

    def _with_attributes(self, device: Device, problems: list[Diagnostic]) -> Device:
        attributes = dict(device.attributes)
        encoded = encode(device)
        for rule, values in self._attributes:
            if not rule.matches(self._driver, encoded):
                continue
            for name, value in values.items():
                if name not in attributes and len(attributes) + len(device.capacity) >= MAX_ENTRIES:
                    message = f"{name} of {rule.where} is left out: a device has at most {MAX_ENTRIES} attributes"
                    problems.append(Diagnostic(device.name, f"{message} and capacities", "set fewer attributes on it"))
                else:
                    attributes[name] = value
        return msgspec.structs.replace(device, attributes=attributes)

    def _reason(self, device: Device) -> str | None:
        encoded = encode(device)
        for rule in self._exclude:
            if rule.matches(self._driver, encoded):
                return f"inventory.{rule.where}: {rule.text}"
        # All rules are evaluated, so that one without a value for any device is detected.
        if self._include and not any([rule.matches(self._driver, encoded) for rule in self._include]):  # noqa: C419
            return "no rule of inventory.include matches"
        return None


def encode(device: Device) -> bytes:
    """Return the variables of a device for expressions."""
    return device.to_json()


def _value(driver: str, where: str, name: str, value: bool | int | str | VersionValue) -> Attribute:
    place = f"configuration, inventory.{where}.set.{name}"
    domain, slash, identifier = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(identifier) or (slash and not _DOMAIN.fullmatch(domain)):
        raise UsageError(
            f"{name!r} is not a valid attribute name",
            where=place,
            hint="use up to 32 letters, digits and underscores, if need be behind a domain and a slash",
        )
    if domain == driver or (not domain and name in BUILT_IN):
        raise UsageError(f"the agent sets the attribute {name!r}", where=place, hint="choose another name")
    if any(domain == standard or domain.endswith(f".{standard}") for standard in STANDARD_DOMAINS):
        raise UsageError(f"{domain} is kept for Kubernetes", where=place, hint="use a domain of yours")
    try:
        return Attribute(version=value.version) if isinstance(value, VersionValue) else Attribute.of(value)
    except ValueError as error:
        raise UsageError(str(error), where=place, hint="correct the value") from None


class PartitionRules:
    """The partition rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(self, rules: Sequence[PartitionRule], driver: str) -> None:
        self._driver = driver
        self._rules = [(Rule(f"partition[{number}].when", rule.when), rule) for number, rule in enumerate(rules)]

    def begin(self) -> None:
        """Reset the rules' results."""
        for compiled, _ in self._rules:
            compiled.begin()

    def has_mode(self, mode: str) -> bool:
        """Return True if any rule offers partitions of this mode."""
        return any(rule.mode == mode for _, rule in self._rules)

    def rule_for(self, whole: Device, mode: str) -> PartitionRule | None:
        """Return the rule that publishes a whole device in partitions of this mode; None if there is none."""
        of_mode = [(compiled, rule) for compiled, rule in self._rules if rule.mode == mode]
        if not of_mode:
            return None
        encoded = encode(whole)
        # All rules are evaluated, so that one without a value for any device is detected.
        matching = [rule for compiled, rule in of_mode if compiled.matches(self._driver, encoded)]
        return matching[0] if matching else None

    def problems(self) -> list[Diagnostic]:
        """Report the rules without a value for any device since `begin`."""
        return list(never_evaluated(compiled for compiled, _ in self._rules))


def used_counter_sets(devices: Iterable[Device], sets: Iterable[CounterSet]) -> tuple[CounterSet, ...]:
    """Return the counter sets that devices consume; a set without consumers would occupy a slice for nothing."""
    names = {consumption.counter_set for device in devices for consumption in device.consumes_counters}
    return tuple(counters for counters in sets if counters.name in names)
