"""Names of CDI: vendor, class, device, and the file of a claim; what loaders accept, and nothing that leaves a folder.

Which names a claim gets is decided here too; what stands behind a name is not.
"""

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
    """A device as runtimes are told of it: `vendor/class=name`."""

    vendor: str
    device_class: str
    name: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.device_class}={self.name}"


def parse(text: str) -> QualifiedName:
    """Take a qualified name apart; PermanentError where a runtime would not take it as one."""
    kind, _, name = text.partition("=")
    vendor, _, device_class = kind.partition("/")
    problem = qualifier_problem(vendor) or qualifier_problem(device_class) or device_problem(name)
    if problem:
        raise PermanentError(f"no CDI device id: {problem}", where=repr(text), hint="write it as vendor/class=name")
    return QualifiedName(vendor, device_class, name)


def qualifier_problem(name: str) -> str | None:
    """Say why `name` can be neither a vendor nor a class; None where it can."""
    if _QUALIFIER.fullmatch(name):
        return None
    return f"{name!r} must start with a letter, end with a letter or digit, and hold only those and '_', '-', '.'"


def device_problem(name: str) -> str | None:
    """Say why `name` cannot be a device's name; None where it can."""
    if _DEVICE.fullmatch(name):
        return None
    return f"{name!r} must start and end with a letter or digit, and hold only those and '_', '-', '.', ':'"


def check_driver(driver: str) -> str:
    """Give the driver's name back where it can be a CDI vendor; PermanentError where it cannot."""
    problem = qualifier_problem(driver)
    if problem or len(driver) > 63:
        raise PermanentError(
            f"cannot name CDI devices: {problem or 'longer than 63 characters'}",
            where=f"driver name {driver!r}",
            hint="choose a DNS name that starts with a letter",
        )
    return driver


def check_uid(uid: str) -> str:
    """Give a claim's uid back where it can be part of a file name; PermanentError where it cannot."""
    if not _UID.fullmatch(uid):
        raise PermanentError(
            "cannot be part of a CDI file name", where=f"claim uid {uid!r}", hint="use letters, digits, '-', '_', '.'"
        )
    return uid


def is_uid(text: str) -> bool:
    """Tell whether a text can be a claim's uid and part of a file name."""
    return bool(_UID.fullmatch(text))


def claim_device(uid: str, device: str, share_id: str | None = None) -> str:
    """Name a claim's device within its spec: it holds the uid, because runtimes cache devices by name.

    A share of a device is a device of its own: a claim may hold two shares of one.
    """
    name = f"{check_uid(uid)}-{device}"
    return f"{name}-{share_id}" if share_id else name


def claim_file(driver: str, uid: str) -> str:
    """Name the file of a claim's spec."""
    return f"{driver}-{CLAIM_CLASS}_{check_uid(uid)}.json"


def uid_of_file(driver: str, name: str) -> str | None:
    """Give the uid of the claim whose spec a file name belongs to; None for a file that is not ours."""
    prefix = f"{driver}-{CLAIM_CLASS}_"
    if not (name.startswith(prefix) and name.endswith(".json")):
        return None
    uid = name[len(prefix) : -len(".json")]
    return uid if _UID.fullmatch(uid) else None
