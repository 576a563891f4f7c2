"""The Debian packages of the local base: their versions and hashes are recorded for each architecture, and compared.

apt verifies each package against the hash in the signed index of the suite; mmdebstrap then reports what it has
installed. A mirror serves only the newest version of a package, so a point release of Debian ends the build until the
file is written again: a base never changes without a change in this repository.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LOCKS = {"x86_64": "base.lock", "aarch64": "base-arm64.lock"}
"""The file of each machine: an update on one of them keeps the record of the other."""
LOCK = Path(__file__).with_name(LOCKS.get(platform.machine(), "base.lock"))
HEADER = "# package version architecture SHA-256; written by `make image-base ARGS=--update-lock`\n"
MAX_NAMED = 5
"""Differences that are named in one message."""


class Package(NamedTuple):
    """One version of a package."""

    name: str
    version: str
    architecture: str
    sha256: str


def digest(lock: Path = LOCK) -> str:
    """Return the SHA-256 of the file."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def read(lock: Path = LOCK) -> list[Package]:
    """Return the recorded packages."""
    return [Package(*line.split()) for line in lock.read_text().splitlines() if not line.startswith("#")]


def write(packages: Iterable[Package], lock: Path = LOCK) -> None:
    """Record packages."""
    lock.write_text(HEADER + "".join(f"{' '.join(package)}\n" for package in sorted(packages)))


def installed(listed: str, index: str) -> list[Package]:
    """Join `dpkg-query --show` (package, version, architecture) with the hashes of the indexes of apt.

    Raises ValueError if an installed version is not in the index.
    """
    hashes: dict[tuple[str, ...], str] = {}
    for stanza in index.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|SHA256): (.+)$", stanza, re.MULTILINE))
        if "SHA256" in fields:
            hashes[fields["Package"], fields["Version"], fields["Architecture"]] = fields["SHA256"]
    found = []
    for line in listed.splitlines():
        name, version, architecture = line.split()
        sha256 = hashes.get((name, version, architecture))
        if sha256 is None:
            raise ValueError(f"{name} {version} is not in the index of the suite")
        found.append(Package(name, version, architecture, sha256))
    return sorted(found)


def differences(recorded: Iterable[Package], found: Iterable[Package]) -> list[str]:
    """Return a line for each package that is missing, added, or another version or file."""
    before, after = ({package.name: package for package in packages} for packages in (recorded, found))
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            lines.append(f"{name} is {'not recorded' if old is None else 'missing'}")
        elif old.version != new.version or old.architecture != new.architecture:
            lines.append(f"{name} is {new.version} {new.architecture} instead of {old.version} {old.architecture}")
        elif old.sha256 != new.sha256:
            lines.append(f"{name} {new.version} has another SHA-256")
    return lines


def check(found: list[Package], lock: Path = LOCK) -> None:
    """Raise ValueError, with the first differences, unless the packages are the recorded ones."""
    architectures = {package.architecture for package in found} - {"all"}
    recorded = read(lock)
    if not architectures & {package.architecture for package in recorded}:
        raise ValueError(f"{lock.name} has no packages for {', '.join(sorted(architectures))}")
    if changed := differences(recorded, found):
        more = f", and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        raise ValueError(f"the packages are not those of {lock.name}: {', '.join(changed[:MAX_NAMED])}{more}")
