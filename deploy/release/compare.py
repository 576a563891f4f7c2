"""Names what differs between two builds of a release, down to the members of archives and wheels."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from deploy.release.provenance import digests

MAX_MEMBERS = 10


def differences(first: Path, second: Path) -> list[str]:
    """Return a line for each file that is in one directory only, or has other bytes."""
    one, other = digests(first), digests(second)
    lines = [f"{name}: only in {first}" for name in one.keys() - other.keys()]
    lines += [f"{name}: only in {second}" for name in other.keys() - one.keys()]
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            changed = members(first / name, second / name)
            lines.append(f"{name}: {', '.join(changed[:MAX_MEMBERS]) or 'content differs'}")
    return sorted(lines)


def members(first: Path, second: Path) -> list[str]:
    """Return the members of two archives that differ; empty for other files, and where only the packing differs."""
    one, other = contents(first), contents(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def contents(path: Path) -> dict[str, object]:
    """Return what identifies each member of an archive, by name; empty for other files."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            return {item.filename: (wheel.read(item), item.date_time, item.external_attr) for item in wheel.infolist()}
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            return {item.name: (content(tar, item), item.mtime, item.mode, item.uid, item.linkname) for item in tar}
    return {}


def content(tar: tarfile.TarFile, item: tarfile.TarInfo) -> bytes | None:
    """Return the bytes of a regular file."""
    file = tar.extractfile(item) if item.isfile() else None
    return None if file is None else file.read()
