"""Applies an operator's rules to devices: which are published, and which attributes are added.

An expression has the same variables as a claim's selector: `device.driver`, `device.attributes`, `device.capacity`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import UsageError
from dra_agent.inventory.api import Attribute, AttributeList, CounterSet
from dra_agent.inventory.builder import MAX_ENTRIES
from dra_agent.inventory.evaluation import Rule, RuleResult, RuleResults, never_evaluated
from dra_agent.inventory.model import Device, Exclusion, device_name
from dra_agent.inventory.overhead import compile_overhead
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
        "external",
        "decoders",
        "copyEngines",
        "fabricClique",
        "fabricDomain",
        "ibPortGUID",
        "ibSubnetPrefix",
        "ifName",
        "integrated",
        "interconnectGroup",
        "interconnectWidth",
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
        "portCount",
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

MAX_VALUES = 48
"""Values of all attributes of a device that the API allows; each entry of a list counts."""

STANDARD_DOMAINS = ("kubernetes.io", "k8s.io")

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


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
        self._ahead = [Rule(f"prepare_ahead[{n}].when", rule.when) for n, rule in enumerate(settings.prepare_ahead)]
        self._overhead = [compile_overhead(number, rule) for number, rule in enumerate(settings.overhead)]
        attributes = (rule for rule, _ in self._attributes)
        overhead = (rule for rule, _ in self._overhead)
        self._results = RuleResults([*self._include, *self._exclude, *attributes, *self._ahead, *overhead])

    def apply(
        self, devices: Iterable[Device], problems: list[Diagnostic], excluded: list[Exclusion]
    ) -> tuple[Device, ...]:
        """Return the published devices with the operator's attributes. Attributes are set before devices are selected.

        So an operator's own attribute can be used in `include` and `exclude`.
        """
        found = self._results.evaluate(devices, self._apply_rules)
        problems += found.problems
        excluded += found.excluded
        return tuple(found.published)

    def _apply_rules(self, device: Device) -> RuleResult:
        problems: list[Diagnostic] = []
        extended = self._with_attributes(device, problems)
        reason = self._reason(extended)
        if reason is None:
            # All rules are evaluated, so that one without a value for any device is detected.
            if any([rule.matches(self._driver, extended) for rule in self._ahead]):  # noqa: C419
                extended = msgspec.structs.replace(extended, prepare_ahead=True)
            if costs := [cost for rule, cost in self._overhead if rule.matches(self._driver, extended)]:
                extended = msgspec.structs.replace(extended, overhead=costs[0])
            return RuleResult(extended, problems)
        return RuleResult(None, problems, (Exclusion(device.name, reason, "rule", uuids=device.uuids),))

    def _with_attributes(self, device: Device, problems: list[Diagnostic]) -> Device:
        matching = [(rule, values) for rule, values in self._attributes if rule.matches(self._driver, device)]
        if not matching:
            return device
        attributes = dict(device.attributes)
        for rule, values in matching:
            for name, value in values.items():
                others = sum(_count(other) for key, other in attributes.items() if key != name)
                message = f"{name} of {rule.where} is left out: a device has at most"
                if name not in attributes and len(attributes) + len(device.capacity) >= MAX_ENTRIES:
                    message = f"{message} {MAX_ENTRIES} attributes and capacities"
                    problems.append(Diagnostic(device.name, message, "set fewer attributes on it"))
                elif others + _count(value) > MAX_VALUES:
                    message = f"{message} {MAX_VALUES} values of attributes"
                    problems.append(Diagnostic(device.name, message, "set shorter lists on it"))
                else:
                    attributes[name] = value
        return msgspec.structs.replace(device, attributes=attributes)

    def _reason(self, device: Device) -> str | None:
        for rule in self._exclude:
            if rule.matches(self._driver, device):
                return f"inventory.{rule.where}: {rule.text}"
        # All rules are evaluated, so that one without a value for any device is detected.
        if self._include and not any([rule.matches(self._driver, device) for rule in self._include]):  # noqa: C419
            return "no rule of inventory.include matches"
        return None


def _count(value: Attribute) -> int:
    return value.count if isinstance(value, AttributeList) else 1


def _value(
    driver: str, where: str, name: str, value: bool | int | str | VersionValue | tuple[bool | int | str, ...]
) -> Attribute:
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
        if isinstance(value, tuple):
            return AttributeList.of_values(value)
        return Attribute(version=value.version) if isinstance(value, VersionValue) else Attribute.of(value)
    except ValueError as error:
        raise UsageError(str(error), where=place, hint="correct the value") from None


class PartitionRules:
    """The partition rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(self, rules: Sequence[PartitionRule], driver: str) -> None:
        self._driver = driver
        self._rules = [(Rule(f"partition[{number}].when", rule.when), rule) for number, rule in enumerate(rules)]

    def begin(self, addresses: Sequence[str]) -> None:
        """Drop the results of the GPUs at these addresses, which are about to be described again."""
        for compiled, _ in self._rules:
            compiled.forget(device_name("gpu", address) for address in addresses)

    def has_mode(self, mode: str) -> bool:
        """Return True if any rule offers partitions of this mode."""
        return any(rule.mode == mode for _, rule in self._rules)

    def rule_for(self, whole: Device, mode: str) -> PartitionRule | None:
        """Return the rule that publishes a whole device in partitions of this mode; None if there is none."""
        of_mode = [(compiled, rule) for compiled, rule in self._rules if rule.mode == mode]
        if not of_mode:
            return None
        # All rules are evaluated, so that one without a value for any device is detected.
        matching = [rule for compiled, rule in of_mode if compiled.matches(self._driver, whole)]
        return matching[0] if matching else None

    def problems(self, addresses: Iterable[str]) -> list[Diagnostic]:
        """Report the rules without a value for any of the GPUs at these addresses."""
        if not self._rules:
            return []
        names = {device_name("gpu", address) for address in addresses}
        return list(never_evaluated((compiled for compiled, _ in self._rules), names))


def used_counter_sets(devices: Iterable[Device], sets: Iterable[CounterSet]) -> tuple[CounterSet, ...]:
    """Return the counter sets that devices consume; a set without consumers would occupy a slice for nothing."""
    names = {consumption.counter_set for device in devices for consumption in device.consumes_counters}
    return tuple(counters for counters in sets if counters.name in names)
