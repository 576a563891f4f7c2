"""Tests for the existence of files in directories that the user may not search.

`Path.exists` raises PermissionError for them until Python 3.14. The state directory of the service has mode 0700.
"""

from __future__ import annotations

from pathlib import Path


def exists(path: Path) -> bool:
    """Return whether this user can see that something is at `path`."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def may_exist(path: Path) -> bool:
    """Return whether something is at `path`, or this user cannot see whether it is."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
