"""Checks that the agent can write its state, and that its state files are intact."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.directory_owners import check_owner, check_parents
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.health.published_health import unusable_reason

_MIN_FREE_BYTES = 16 * 1024 * 1024
"""Bytes below which the ledger may soon be unable to write; it needs a few KiB for each claim."""


def check_state_directory(context: CheckContext) -> Iterator[Finding]:
    """Check the state directory and its ledger."""
    directory = context.state_dir
    yield from check_parents(directory)
    try:
        status = directory.stat()
    except FileNotFoundError:
        yield ok("does not exist yet; the agent makes it", str(directory))
        return
    except OSError as error:
        yield problem(f"cannot be checked: {error.strerror}", str(directory), "run the doctor as root")
        return
    mode = status.st_mode
    if not stat.S_ISDIR(mode):
        yield problem("is not a directory", str(directory), "remove it, or choose another with --state-dir")
        return
    yield from check_owner(directory, status.st_uid)
    if mode & 0o022:
        yield problem(
            f"others can write it (mode {stat.S_IMODE(mode):o}), and so change the holders of devices",
            str(directory),
            f"chmod 700 {directory}",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        yield problem("cannot be written", str(directory), "mount it writable, or choose another with --state-dir")
    else:
        yield from _room(directory)
    yield from _ledger(context)


def _room(directory: Path) -> Iterator[Finding]:
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < _MIN_FREE_BYTES:
        yield problem(
            f"has {free // 1024} KiB left; without room no claim can be prepared", str(directory), "make room there"
        )
    elif room.f_files and not room.f_favail:
        yield problem("has no inode left; no claim can be prepared", str(directory), "remove files there")


def _ledger(context: CheckContext) -> Iterator[Finding]:
    where = str(context.state_dir / "ledger")
    ledger = context.ledger
    if ledger.failure is not None:
        yield problem(f"cannot be read: {ledger.failure}", where, "run the doctor as root, or check the directory")
        return
    for message in ledger.problems:
        yield problem(message, where, "the agent quarantines damaged files; compare its claims with reality")
    directory = context.state_dir / "ledger"
    if directory.is_dir():
        for path in sorted(directory.glob("*.corrupt-*")):
            yield warning("a damaged file that was set aside", str(path), "keep it for a report, then remove it")
    if context.inventory is not None:
        devices = {device.name: device for device in context.inventory.devices}
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


def check_standalone_store(context: CheckContext) -> Iterator[Finding]:
    """Check quarantined files, the agent's lock and the store."""
    directory = context.state_dir
    for path in sorted(directory.glob("*.corrupt-*")):
        yield warning(
            "a damaged file was quarantined; its intact records were kept",
            str(path),
            "check whether claims are missing (`dra-agent claim holders`) and whether the "
            "disk fails (dmesg); then move the file away",
        )
    holder = lock_holder(directory / context.lock_name, context.locks)
    if holder is not None:
        if not _answers(directory, context):
            yield problem(
                f"an agent (pid {holder}) holds the state directory and does not listen",
                str(directory),
                "it may still be starting: check again; else read its log (journalctl -u dra-agent) and restart it",
            )
        return  # it checks the store itself, and a copy could be half of a change
    if (directory / context.lock_name).exists() and not _answers(directory, context):
        yield problem(
            "no agent runs here, and one did: nothing is prepared or released",
            str(directory),
            "read why it ended (journalctl -u dra-agent), and start it (systemctl start dra-agent)",
        )
    store = directory / context.store_name
    if store.exists():
        yield _verdict(store)


def _answers(directory: Path, context: CheckContext) -> bool:
    """Whether a process listens on a socket of the agent.

    The lock of an agent in another PID namespace is not visible. Only standalone mode has the first socket.
    """
    for name in (context.socket_name, context.trigger_name):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            try:
                asking.connect(str(directory / name))
            except PermissionError:
                return True
            except OSError:
                continue
            return True
    return False


def lock_holder(lock: Path, locks: Path) -> int | None:
    """Return the pid of the agent that holds the lock; None if it is not held.

    An attempt holds the lock for a moment, which could keep an agent from starting. The kernel lists all locks
    (proc_locks(5)); device numbers there differ from stat's on some file systems, so pid and inode are compared.
    """
    try:
        pid, inode = lock.read_text(errors="replace").strip(), lock.stat().st_ino
        lines = locks.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        if fields[1:2] == ["FLOCK"] and len(fields) > 5 and fields[4] == pid and fields[5].endswith(f":{inode}"):
            return int(pid)
    return None


def _verdict(store: Path) -> Finding:
    try:
        with tempfile.TemporaryDirectory(prefix="dra-agent-doctor-") as directory:
            for path in (store, store.with_name(f"{store.name}-wal")):
                if path.exists():
                    shutil.copyfile(path, Path(directory) / path.name)
            with closing(sqlite3.connect(Path(directory) / store.name)) as connection:
                (message,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        message = str(error)
    except OSError as error:
        return problem(f"cannot be read: {error.strerror}", str(store), "run the doctor as root")
    if message == "ok":
        return ok("the stored claims are whole", str(store))
    hint = "start the agent: it keeps the intact records and quarantines the file; then apply missing claims again"
    return problem(f"the stored claims are damaged: {message}", str(store), hint)
