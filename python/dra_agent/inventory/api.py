"""Parts of a resource.k8s.io/v1 Device as the API writes them: attributes, capacities, counters, overhead and taints.

It defines their types and rejects values that the API never accepts; back ends set them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

MAX_STRING_BYTES = 64
"""Bytes that the API allows in a string or version attribute."""
INT64 = range(-(1 << 63), 1 << 63)
"""Integers of the API, which refuses the whole slice of another one."""

# Semantic Versioning 2.0.0, as the API server checks it: no leading "v", no leading zeros.
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-((0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_VENDOR_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[.+~_-]([0-9A-Za-z.~_+-]+))?")
_BINARY_SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Attribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attribute value: exactly one of the four is set."""

    integer: int | None = msgspec.field(name="int", default=None)
    boolean: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        values = [v for v in (self.integer, self.boolean, self.string, self.version) if v is not None]
        if len(values) != 1:
            raise ValueError(f"an attribute has exactly one value, not {len(values)}")
        text = self.string if self.string is not None else self.version
        if text is not None and len(text.encode()) > MAX_STRING_BYTES:
            raise ValueError(f"{text!r} is {len(text.encode())} bytes long, at most {MAX_STRING_BYTES} are allowed")
        if self.version is not None and not _SEMVER.fullmatch(self.version):
            raise ValueError(f"{self.version!r} is not a semantic version (X.Y.Z)")
        if self.integer is not None:
            _check_integer(self.integer)

    @classmethod
    def of(cls, value: bool | int | str) -> Attribute:
        """Make a bool, int or string attribute, by the type of `value`."""
        if isinstance(value, bool):
            return cls(boolean=value)
        if isinstance(value, int):
            return cls(integer=value)
        return cls(string=value)

    @classmethod
    def of_version(cls, text: str) -> Attribute:
        """Make a version attribute of a vendor's text ("580.65.06" → 580.65.6); raises ValueError."""
        return cls(version=semver(text))

    @property
    def value(self) -> bool | int | str:
        """The one value that is set."""
        for value in (self.boolean, self.integer, self.string):
            if value is not None:
                return value
        assert self.version is not None
        return self.version


class AttributeList(Attribute, frozen=True, omit_defaults=True):
    """A list-typed attribute value (KEP-5491): exactly one of the four lists is set."""

    integers: tuple[int, ...] | None = msgspec.field(name="ints", default=None)
    booleans: tuple[bool, ...] | None = msgspec.field(name="bools", default=None)
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        lists = [entry for entry in (self.integers, self.booleans, self.strings, self.versions) if entry is not None]
        if len(lists) != 1 or not lists[0]:
            raise ValueError("a list has at least one value, and all of one type")
        for text in self.strings or ():
            Attribute(string=text)
        for text in self.versions or ():
            Attribute(version=text)
        for number in self.integers or ():
            _check_integer(number)

    @classmethod
    def of_values(cls, values: Sequence[bool | int | str]) -> AttributeList:
        """Make a list of bool, int or string values, by their type; raises ValueError."""
        if all(isinstance(value, bool) for value in values):
            return cls(booleans=tuple(value for value in values if isinstance(value, bool)))
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            return cls(integers=tuple(int(value) for value in values))
        if all(isinstance(value, str) for value in values):
            return cls(strings=tuple(str(value) for value in values))
        raise ValueError("a list has at least one value, and all of one type")

    @property
    def value(self) -> str:
        """The values as one text."""
        lists = (self.booleans, self.integers, self.strings, self.versions)
        values = next(entry for entry in lists if entry is not None)
        return ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)

    @property
    def count(self) -> int:
        """The number of values: the API limits their sum for a device."""
        return sum(len(entry or ()) for entry in (self.booleans, self.integers, self.strings, self.versions))


def _check_integer(number: int) -> None:
    if number not in INT64:
        raise ValueError(f"{number} is not an integer of 64 bits, with its sign")


def semver(text: str) -> str:
    """Convert a vendor's version to a strict semantic version (semver.org); raises ValueError if it has no numbers."""
    text = text.strip()
    if _SEMVER.fullmatch(text):
        return text
    match = _VENDOR_VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    major, minor, patch, rest = match.groups()
    version = f"{int(major)}.{int(minor or 0)}.{int(patch or 0)}"
    if rest:
        parts = [part for part in re.split(r"[^0-9A-Za-z-]+", rest) if part]
        version = f"{version}+{'.'.join(parts)}"[:MAX_STRING_BYTES].rstrip(".+") if parts else version
    return version


class RequestRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts of a capacity that one claim may request of a shared device (Quantity texts)."""

    min: str
    max: str | None = None
    step: str | None = None


class RequestPolicy(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The request policy of a capacity; only for devices with allowMultipleAllocations."""

    default: str | None = None
    valid_values: tuple[str, ...] = ()
    valid_range: RequestRange | None = None


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An amount that a device has, as a Quantity text."""

    value: str
    request_policy: RequestPolicy | None = None

    @classmethod
    def of(cls, amount: int) -> Capacity:
        """Make a capacity of a plain count."""
        return cls(value=str(amount))

    @classmethod
    def of_bytes(cls, amount: int) -> Capacity:
        """Make a capacity of `amount` bytes: exact, in the largest unit that divides it (85899345920 → "80Gi")."""
        suffix = ""
        for larger in _BINARY_SUFFIXES:
            if amount == 0 or amount % 1024:
                break
            amount, suffix = amount // 1024, larger
        return cls(value=f"{amount}{suffix}")


class Counter(msgspec.Struct, frozen=True):
    """An amount in a counter set, as a Quantity text."""

    value: str


class CounterSet(msgspec.Struct, frozen=True):
    """The counters that the partitions of one device share; in the pool of the device's family."""

    name: str
    counters: dict[str, Counter]


class CounterConsumption(msgspec.Struct, frozen=True, rename="camel"):
    """The amounts that one device consumes from a counter set."""

    counter_set: str
    counters: dict[str, Counter]


class Overhead(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Amounts of a node's own resource that a device costs its pods (KEP-5517), as Quantity texts; one or both."""

    per_pod: str | None = None
    per_container: str | None = None


class Taint(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Keeps claims off a device, unless they tolerate it."""

    key: str
    effect: Literal["None", "NoSchedule", "NoExecute"]
    value: str | None = None
    time_added: str | None = None
    """RFC 3339, whole seconds, UTC."""
