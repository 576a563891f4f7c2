"""CDI names of vendors, classes, devices and of a claim's spec file: valid for loaders, and safe in a path."""

from __future__ import annotations

import re
from typing import NamedTuple

from dra_agent.errors import PermanentError

CLAIM_CLASS = "claim"
_QUALIFIER = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
# A uid becomes part of a file name: no separators, no leading dot, and room for the rest within NAME_MAX (255).
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?")


class QualifiedName(NamedTuple):
    """The fully qualified name of a device: `vendor/class=name`."""

    vendor: str
    device_class: str
    name: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.device_class}={self.name}"


def parse(text: str) -> QualifiedName:
    """Parse a qualified name. Raises PermanentError if a runtime would reject it."""
    kind, _, name = text.partition("=")
    vendor, _, device_class = kind.partition("/")
    problem = qualifier_problem(vendor) or qualifier_problem(device_class) or device_problem(name)
    if problem:
        raise PermanentError(f"not a CDI device id: {problem}", where=repr(text), hint="write it as vendor/class=name")
    return QualifiedName(vendor, device_class, name)


def qualifier_problem(name: str) -> str | None:
    """Return why `name` is not a valid vendor or class; None if it is."""
    if _QUALIFIER.fullmatch(name):
        return None
    return f"{name!r} must start with a letter, end with a letter or digit, and hold only those and '_', '-', '.'"


def device_problem(name: str) -> str | None:
    """Return why `name` is not a valid device name; None if it is."""
    if _DEVICE.fullmatch(name):
        return None
    return f"{name!r} must start and end with a letter or digit, and hold only those and '_', '-', '.', ':'"


def check_driver(driver: str) -> str:
    """Return the driver's name. Raises PermanentError if it is not a valid CDI vendor."""
    problem = qualifier_problem(driver)
    if problem or len(driver) > 63:
        raise PermanentError(
            f"cannot name CDI devices: {problem or 'longer than 63 characters'}",
            where=f"driver name {driver!r}",
            hint="choose a DNS name that starts with a letter",
        )
    return driver


def check_uid(uid: str) -> str:
    """Return a claim's uid. Raises PermanentError if it cannot be part of a file name."""
    if not _UID.fullmatch(uid):
        raise PermanentError(
            "cannot be part of a CDI file name", where=f"claim uid {uid!r}", hint="use letters, digits, '-', '_', '.'"
        )
    return uid


def is_uid(text: str) -> bool:
    """Return whether a text is a valid claim uid and safe in a file name."""
    return bool(_UID.fullmatch(text))


def claim_device(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the name of a claim's device in its spec. It contains the uid, because runtimes cache devices by name.

    Each share is a separate device, because a claim may hold two shares of one device.
    """
    name = f"{check_uid(uid)}-{device}"
    return f"{name}-{share_id}" if share_id else name


def claim_file(driver: str, uid: str) -> str:
    """Return the file name of a claim's spec."""
    return f"{driver}-{CLAIM_CLASS}_{check_uid(uid)}.json"


def uid_of_file(driver: str, name: str) -> str | None:
    """Return the claim uid of a spec's file name; None for other files."""
    prefix = f"{driver}-{CLAIM_CLASS}_"
    if not (name.startswith(prefix) and name.endswith(".json")):
        return None
    uid = name[len(prefix) : -len(".json")]
    return uid if _UID.fullmatch(uid) else None
