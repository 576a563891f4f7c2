"""Whether the agent can keep its state, and whether what it kept is whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.health.prepared import unusable_reason

_LEAST_FREE = 16 * 1024 * 1024
"""Bytes below which the ledger may soon be unable to write; it needs a few KiB for each claim."""


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at the state directory and at the ledger in it."""
    directory = examination.state_dir
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        yield ok("does not exist yet; the agent makes it", str(directory))
        return
    except OSError as error:
        yield problem(f"cannot be looked at: {error.strerror}", str(directory), "run the doctor as root")
        return
    if not stat.S_ISDIR(mode):
        yield problem("is no directory", str(directory), "remove it, or choose another with --state-dir")
        return
    if mode & 0o022:
        yield problem(
            f"others can write it (mode {stat.S_IMODE(mode):o}), and so change who holds what",
            str(directory),
            f"chmod 700 {directory}",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        yield problem("cannot be written", str(directory), "mount it writable, or choose another with --state-dir")
    else:
        yield from _room(directory)
    yield from _ledger(examination)


def _room(directory: Path) -> Iterator[Finding]:
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_FREE:
        yield problem(
            f"has {free // 1024} KiB left; without room no claim can be prepared", str(directory), "make room there"
        )
    elif room.f_files and not room.f_favail:
        yield problem("has no inode left; no claim can be prepared", str(directory), "remove files there")


def _ledger(examination: CheckContext) -> Iterator[Finding]:
    where = str(examination.state_dir / "ledger")
    ledger = examination.ledger
    if ledger.failure is not None:
        yield problem(f"cannot be read: {ledger.failure}", where, "run the doctor as root, or look at the directory")
        return
    for said in ledger.problems:
        yield problem(said, where, "the agent sets damaged files aside and goes on; compare its claims with reality")
    directory = examination.state_dir / "ledger"
    if directory.is_dir():
        for path in sorted(directory.glob("*.corrupt-*")):
            yield warning("a damaged file that was set aside", str(path), "keep it for a report, then remove it")
    if examination.inventory is not None:
        devices = {device.name: device for device in examination.inventory.devices}
        for claim, device in ledger.held:
            if reason := unusable_reason(devices.get(device)):
                yield problem(
                    f"prepared for claim {claim}, and cannot be used: {reason}",
                    device,
                    "delete the claim's pods, or the claim; see `dra-agent devices` for the device",
                )
    if not ledger.problems:
        count = len(ledger.claims)
        yield ok(f"{count} claim{'' if count == 1 else 's'} in the ledger", where)
