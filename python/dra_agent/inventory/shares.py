"""Publishes devices in shares, by the operator's rules: several claims hold one, each with an amount of its memory.

It defines valid shares and their enforcement; the scheduler counts them. Source: KEP-5075
(consumable capacity). Other capacities are not consumed, and stay visible to selectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dra_agent import _native
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import UsageError
from dra_agent.inventory.api import Attribute, Capacity, RequestPolicy, RequestRange
from dra_agent.inventory.builder import MAX_ENTRIES
from dra_agent.inventory.evaluation import Rule, RuleResult, RuleResults
from dra_agent.inventory.model import Device
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.inventory.settings import Enforcement, ShareRule

MEMORY = "memory"
MULTIPROCESSORS = "multiprocessors"
ENFORCEMENT = "memoryEnforcement"
_USED = "share"
"""Key of the identity: the mechanism of each share. Only one that cannot be bypassed is published as enforcement."""

_MIB = 1 << 20
MPS = "mps"
"""The mechanism that counts memory in whole Mi, limits multiprocessors too, and can be bypassed on a partition."""
_NOTHING = RequestPolicy(default="0", valid_range=RequestRange(min="0", max="0"))


@dataclass(frozen=True, slots=True)
class _Offer:
    """One rule, compiled; amounts in bytes."""

    rule: Rule
    enforcement: Enforcement
    minimum: int
    step: int
    default: int | None
    multiprocessors: bool


class Shares:
    """The share rules of one configuration, compiled. UsageError where one can never work."""

    def __init__(self, rules: Sequence[ShareRule], driver: str) -> None:
        self._driver = driver
        self._offers = [_offer(number, rule) for number, rule in enumerate(rules)]
        self._results = RuleResults([offer.rule for offer in self._offers])

    def apply(self, devices: Iterable[Device], problems: list[Diagnostic]) -> tuple[Device, ...]:
        """Return the devices; a device that a rule matches is returned as its shares."""
        found = self._results.evaluate(devices, self._apply_rules)
        problems += found.problems
        return tuple(found.published)

    def _apply_rules(self, device: Device) -> RuleResult:
        problems: list[Diagnostic] = []
        shared = self._shared(device, problems)
        return RuleResult(shared, problems)

    def _shared(self, device: Device, problems: list[Diagnostic]) -> Device:
        offer = next((offer for offer in self._offers if offer.rule.matches(self._driver, device)), None)
        if offer is None:
            return device
        reason = _reason_not_to(device, offer)
        if reason is not None:
            message = f"it is not published in shares, as inventory.{offer.rule.where} requires: {reason}"
            problems.append(Diagnostic(device.name, message, "let the rule match other devices"))
            return device
        enforcement = offer.enforcement
        if enforcement != "none" and (why := device.memory_limits.get(enforcement, "it is not for such a device")):
            message = f"the memory of its shares is not enforced: {enforcement} cannot be used here: {why}"
            hint = "make it available, or choose another enforcement, or none, in inventory.share"
            problems.append(Diagnostic(device.name, message, hint))
            enforcement = "none"
        used = enforcement
        if used == MPS and "parent" in device.identity:
            # MIG user guide, "MIG with CUDA MPS": the mode is not supported in MIG mode.
            message = (
                "MPS limits only the programs that use it; others can use the memory of all shares: "
                "in MIG mode a GPU has no compute mode EXCLUSIVE_PROCESS"
            )
            hint = "use such shares only for users who may use the whole MIG device, or claim whole MIG devices"
            problems.append(Diagnostic(device.name, message, hint, severity="warning"))
            enforcement = "none"
        return msgspec.structs.replace(
            device,
            identity={**device.identity, _USED: used},
            attributes={**device.attributes, ENFORCEMENT: Attribute.of(enforcement)},
            capacity={
                name: msgspec.structs.replace(capacity, request_policy=_policy(name, capacity, offer, enforcement))
                for name, capacity in device.capacity.items()
            },
            allow_multiple_allocations=True,
        )


def offered_enforcement(device: Device) -> str | None:
    """Return the memory enforcement of a device's shares; None if it is not published in shares."""
    if not device.allow_multiple_allocations or device.family != "gpu":
        return None
    attribute = device.attributes.get(ENFORCEMENT)
    return str(attribute.value) if attribute is not None else "none"


def limit_mechanism(device: Device) -> str | None:
    """Return the limit mechanism of a device's shares, also if it can be bypassed; None: not published in shares."""
    enforcement = offered_enforcement(device)
    return None if enforcement is None else device.identity.get(_USED, enforcement)


def _reason_not_to(device: Device, offer: _Offer) -> str | None:
    is_vfio = PASSTHROUGH in device.identity or any(node.role == "vfio" for node in device.nodes)
    if device.family != "gpu" or is_vfio:
        return "only GPUs and MIG devices are"
    if device.consumes_counters:
        return "it is divided already, by inventory.partition"
    memory = device.capacity.get(MEMORY)
    if memory is None:
        return "its memory is not known"
    total = _native.quantity_value(memory.value)
    if total < max(offer.minimum, offer.default or 0):
        return f"it has {memory.value} of memory, less than one share"
    if len({*device.attributes, ENFORCEMENT}) + len(device.capacity) > MAX_ENTRIES:
        return f"it has {MAX_ENTRIES} attributes and capacities already, and {ENFORCEMENT} needs one more"
    return None


def _policy(name: str, capacity: Capacity, offer: _Offer, enforcement: Enforcement) -> RequestPolicy:
    if name == MEMORY:
        return _memory(_native.quantity_value(capacity.value), offer)
    if name == MULTIPROCESSORS and offer.multiprocessors and enforcement == MPS:
        # MPS caps the multiprocessors of a client but does not reserve them: a claim without a number has no cap, and
        # takes none from other claims.
        return RequestPolicy(default="0", valid_range=RequestRange(min="0", max=capacity.value, step="1"))
    return _NOTHING


def _memory(total: int, offer: _Offer) -> RequestPolicy:
    most = offer.minimum + (total - offer.minimum) // offer.step * offer.step
    # The API requires room for one step above the minimum.
    step = _quantity(offer.step) if offer.minimum + offer.step <= total else None
    return RequestPolicy(
        default=_quantity(most if offer.default is None else offer.default),
        valid_range=RequestRange(min=_quantity(offer.minimum), max=_quantity(most), step=step),
    )


def _offer(number: int, rule: ShareRule) -> _Offer:
    where = f"share[{number}]"
    minimum = _bytes(where, "minimum", rule.minimum)
    step = _bytes(where, "step", rule.step)
    default = None if rule.default is None else _bytes(where, "default", rule.default)
    if default is not None and (default < minimum or (default - minimum) % step):
        raise _wrong(
            where, "default", f"{rule.default} is not {rule.minimum} and whole steps of {rule.step}", "make it one"
        )
    if rule.enforcement == MPS and (minimum % _MIB or step % _MIB):
        raise _wrong(where, "step", "MPS counts memory in whole Mi", "use whole Mi for minimum and step")
    if rule.multiprocessors and rule.enforcement != MPS:
        raise _wrong(
            where,
            "multiprocessors",
            f"multiprocessors cannot be limited with enforcement {rule.enforcement!r}",
            'use enforcement = "mps", or leave it out',
        )
    return _Offer(Rule(f"{where}.when", rule.when), rule.enforcement, minimum, step, default, rule.multiprocessors)


def _bytes(where: str, field: str, text: str) -> int:
    try:
        amount = _native.quantity_value(text)
        if _native.quantity_compare(text, str(amount)) or amount < 1:
            raise ValueError("not a whole number of bytes above 0")
    except ValueError as error:
        raise _wrong(where, field, f"{text!r}: {error}", "write an amount such as 4Gi") from None
    return amount


def _wrong(where: str, field: str, message: str, hint: str) -> UsageError:
    return UsageError(message, where=f"configuration, inventory.{where}.{field}", hint=hint)


def _quantity(amount: int) -> str:
    return Capacity.of_bytes(amount).value
