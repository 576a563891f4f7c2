"""Folders that belong to the agent, made by handle: no path is looked up twice, and no link is followed.

Between two look-ups of one path, whoever may write its parent can put something else there (renameat2(2) exchanges two
entries in one step). A handle stays with what it was opened for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_MOST_ASIDE = 100
"""Folders of one name that wait to be removed."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make(base: Path, *steps: tuple[str, int]) -> None:
    """Make folders below one another in `base`, each a name and a mode, whatever the umask is.

    Raises OSError: EPERM where a folder belongs to another user than the agent's; ENOTDIR, ELOOP where it is none.
    """
    at = base
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, mode in steps:
            at = at / name
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=handle)
            try:
                inner = os.open(name, _OPEN, dir_fd=handle)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(at)) from error
            os.close(handle)
            handle = inner
            status = os.fstat(handle)
            if status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"belongs to user {status.st_uid}, and not to the agent", str(at))
            if status.st_mode & 0o7777 != mode:
                os.fchmod(handle, mode)
    finally:
        os.close(handle)


def remove(base: Path, *steps: str) -> Path | None:
    """Move the last of these folders out of the way, next to itself, and give its new path; None where it is not there.

    What a container wrote below it can be deep and plenty: removing it may take long, and keeps nothing else waiting.
    """
    *parents, name = steps
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in parents:
            inner = os.open(step, _OPEN, dir_fd=handle)
            os.close(handle)
            handle = inner
        number = 0
        while True:
            aside = f".{name}.gone-{number}"
            try:
                # Fails where a former one is still there with something in it.
                os.rename(name, aside, src_dir_fd=handle, dst_dir_fd=handle)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or number >= _MOST_ASIDE:
                    raise
                number += 1
                continue
            return base.joinpath(*parents, aside)
    except FileNotFoundError:
        return None
    finally:
        os.close(handle)


def left_over(folder: Path, name: str) -> Sequence[Path]:
    """Give what `remove` has moved aside of a folder and nothing has removed yet."""
    with suppress(OSError):
        return sorted(folder.glob(f".{name}.gone-*"))
    return ()
