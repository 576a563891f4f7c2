"""Checks which other users can change or replace a directory of the agent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.finding import Finding, problem, warning


def check_owner(directory: Path, uid: int) -> Iterator[Finding]:
    """Check the owner of a directory: root, or the user of an agent without permissions."""
    if uid not in (0, os.geteuid()):
        yield warning(f"belongs to user {uid}, who can change its files", str(directory), f"chown root {directory}")


def check_parents(directory: Path) -> Iterator[Finding]:
    """Check the directories above one of the agent, and above what its links name; missing ones are skipped.

    In a directory with the sticky bit, such as /tmp, only the owner of an entry can replace it.
    """
    for parent in dict.fromkeys((*directory.absolute().parents, *Path(os.path.realpath(directory)).parents)):
        try:
            mode = parent.stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield problem(
                f"every user can replace it: all users can write {parent} (mode {stat.S_IMODE(mode):o})",
                str(directory),
                f"chmod o-w {parent}",
            )
