"""Checks that container runtimes can read the CDI directories, and that the specs in them are valid."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.registry import load_registry
from dra_agent.cdi.validate import warnings
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.directory_owners import check_owner, check_parents
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import AgentError


def check_cdi(context: CheckContext) -> Iterator[Finding]:
    """Check the CDI directories, every file in them, and the specs of claims."""
    usable = [directory for directory in context.cdi_dirs if directory.is_dir()]
    yield from _own(context)
    registry = load_registry(usable)
    for file in registry.files:
        for reason in file.refused:
            yield problem(f"runtimes refuse it: {reason}", str(file.path), "fix or remove the file")
        if file.caveat:
            yield warning(file.caveat, str(file.path), "write it as the specification has it; other runtimes read it")
        for message in warnings(file.spec) if file.spec else ():
            yield warning(message, str(file.path), "fix the file: a later runtime may refuse it")
    for conflict in registry.conflicts:
        yield problem(
            f"{conflict.name} is defined twice, so runtimes ignore both definitions",
            " and ".join(map(str, conflict.paths)),
            "remove one of the files",
        )
    bad = sum(1 for file in registry.files if file.refused)
    if not bad and not registry.conflicts:
        yield ok(f"{len(registry.files)} CDI specs with {len(registry.devices)} devices")
    yield from _claims(context)


def _own(context: CheckContext) -> Iterator[Finding]:
    directory = context.cdi_dir
    read = [path.resolve() for path in context.runtime_dirs]
    if directory.resolve() not in read:
        yield warning(
            "is not a directory that container runtimes read by default",
            str(directory),
            f"use one of {', '.join(map(str, context.runtime_dirs))}, or add it to the configuration of the runtimes",
        )
    yield from check_parents(directory)
    try:
        status = directory.stat()
    except FileNotFoundError:
        yield from _missing(directory)
        return
    except OSError as error:
        yield problem(f"cannot be checked: {error.strerror}", str(directory), "run the doctor as root")
        return
    mode = status.st_mode
    if not stat.S_ISDIR(mode):
        yield problem("is not a directory", str(directory), "remove it; the agent makes a directory")
        return
    yield from check_owner(directory, status.st_uid)
    if mode & 0o055 != 0o055:
        yield warning(
            f"not readable by all users (mode {stat.S_IMODE(mode):o}), so rootless runtimes find no devices",
            str(directory),
            f"chmod 755 {directory}",
        )
    if mode & 0o022:
        yield problem(
            f"others can write it (mode {stat.S_IMODE(mode):o}), and so get any device",
            str(directory),
            f"chmod 755 {directory}",
        )
    if _is_read_only(directory):
        yield problem("cannot be written", str(directory), "mount it writable, or choose another with --cdi-dir")


_NO_DIRECTORIES = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devpts", "securityfs", "debugfs"})
"""File systems of the kernel, in which users create no directories."""


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path; empty where it is not known."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    mounts = [fields for line in lines if len(fields := line.split()) > 2 and path.resolve().is_relative_to(fields[1])]
    return max(mounts, key=lambda fields: len(fields[1]))[2] if mounts else ""


def _missing(directory: Path) -> Iterator[Finding]:
    parent = next((path for path in directory.parents if path.exists()), Path("/"))
    if (kind := _file_system(parent)) in _NO_DIRECTORIES:
        yield problem(
            f"does not exist, and nothing can be made in {parent} ({kind})",
            str(directory),
            "choose another with --cdi-dir",
        )
    elif _is_read_only(parent):
        yield problem(
            f"does not exist, and {parent} cannot be written", str(directory), "make it, or choose another --cdi-dir"
        )
    else:
        yield ok("does not exist yet; the agent makes it", str(directory))


def _is_read_only(directory: Path) -> bool:
    return not os.access(directory, os.W_OK | os.X_OK)


def _claims(context: CheckContext) -> Iterator[Finding]:
    if context.ledger.failure is not None:
        return
    try:
        written = SpecDirectory(context.cdi_dir, context.driver).claims()
    except AgentError as error:
        yield problem(error.message, str(context.cdi_dir), error.hint or "")
        return
    held = context.ledger.claims
    for uid, path in written.items():
        if uid not in held:
            yield warning(
                f"is of claim {uid}, which holds nothing here",
                str(path),
                "start the agent, which removes it, or remove it",
            )
    for uid in sorted(held - written.keys()):
        yield problem(
            "holds devices and has no CDI spec: its containers cannot start",
            f"claim {uid}",
            "restart the agent: it writes the specs of held claims again",
        )
