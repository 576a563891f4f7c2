"""Directories of notice files, one per claim, which containers mount read-only.

A container mounts the directory and not the file: a mount follows the inode, so a file that is replaced by rename would
stay at its old content in the container (mount_namespaces(7), rename(2)). A directory that is removed while a container
runs is lost for this container, so it is never replaced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.names import check_uid, is_uid
from dra_agent.deadline import Deadline
from dra_agent.device_setup.notice.document import FILE, MAX_BYTES, NONE, ReclaimNotice, decode, encode, successor
from dra_agent.errors import RetryableError
from dra_agent.prepare.locks import KeyedLocks

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644


class NoticeDirectory:
    """The directories of one agent, below one path; thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        current: Callable[[], ReclaimNotice] = lambda: NONE,
        may_replace: Callable[[], bool] = lambda: True,
        keeps_notice: bool = False,
    ) -> None:
        """`path` is the same for container runtimes; nothing is created before a claim needs it.

        `current` returns what the files have to contain. `may_replace`: whether this agent replaces existing files, of
        several in a rolling update. `keeps_notice`: claims are released while their containers run, so `remove` keeps
        the directory during a notice.
        """
        self.path = path
        self._current = current
        self._may_replace = may_replace
        self._keeps_notice = keeps_notice
        self._locks = KeyedLocks()
        self._left: set[str] = set()
        """Claims whose files were left to a newer agent."""

    def take_left(self) -> bool:
        """Whether files were left to a newer agent that has ended. They are to be updated, and are forgotten here.

        RetryableError where it is not known.
        """
        if not self._left or not self._may_replace():
            return False
        self._left.clear()
        return True

    def folder(self, uid: str) -> Path:
        """Return the directory of a claim. Raises PermanentError for a uid that is unsafe in a path."""
        return self.path / check_uid(uid)

    def create(self, uid: str, deadline: Deadline) -> None:
        """Create the directory of a claim with its file, or check and repair them.

        A file that exists and cannot be replaced is left as it is: the agent retries it.

        Raises:
            RetryableError: There is no directory or no file, and none can be created.
        """
        folder = self.folder(uid)
        with self._locks.hold([uid], deadline, f"claim {uid}"):
            try:
                folder.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
                self._check(folder)
                folder.chmod(_DIRECTORY_MODE)  # independent of the umask
                atomic_file.remove_leftovers(folder)
                self._replace(uid, folder)
            except OSError as error:
                if not (folder / FILE).is_file():
                    raise _disk_error(folder, "cannot create the claim's notice file", error) from error

    def update(self, uid: str, deadline: Deadline) -> bool:
        """Write the current content into the file of a claim; False if nothing changes, or the claim has none.

        Raises:
            RetryableError: The file cannot be written.
        """
        folder = self.folder(uid)
        with self._locks.hold([uid], deadline, f"notice of claim {uid}"):
            try:
                self._check(folder)
                return self._replace(uid, folder)
            except FileNotFoundError:
                if not folder.exists():
                    return False  # released in the meantime
                raise
            except OSError as error:
                raise _disk_error(folder, "cannot write the claim's notice file", error) from error

    def remove(self, uid: str, deadline: Deadline, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove the directory of a claim, if it exists and need not be kept; returns whether it was removed.

        `unless` keeps it, and is called while no other thread creates or removes it.

        Raises:
            RetryableError: It cannot be removed.
        """
        folder = self.folder(uid)
        self._left.discard(uid)
        if self._keeps_notice and self._current().phase == "notice":
            return False
        with self._locks.hold([uid], deadline, f"claim {uid}"):
            if unless():
                return False
            try:
                self._check(folder)
                for name in os.listdir(folder):  # noqa: PTH208 - names only
                    (folder / name).unlink()
                folder.rmdir()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise _disk_error(folder, "cannot remove the claim's notice file", error) from error
        return True

    def uids(self) -> list[str]:
        """Return the uids of the claims with a directory. Raises RetryableError if they cannot be listed."""
        try:
            return sorted(name for name in os.listdir(self.path) if is_uid(name))  # noqa: PTH208 - names only
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _disk_error(self.path, "cannot list the notice files", error) from error

    def _replace(self, uid: str, folder: Path) -> bool:
        path = folder / FILE
        try:
            previous = decode(atomic_file.read(path, MAX_BYTES))
        except OSError:
            previous = None  # missing, or not a plain file: a rename replaces it
        following = successor(previous, self._current())
        self._left.discard(uid)
        if following is previous:
            return False
        if previous is not None and not self._may_replace():
            self._left.add(uid)
            return False
        # Not synced: it is written again at start, and a container does not outlive its host.
        atomic_file.write(path, encode(following), mode=_FILE_MODE)
        return True

    def _check(self, folder: Path) -> None:
        """Raise OSError unless it is a directory: a link would be followed to a path of another owner."""
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(0, "is not a directory", str(folder))


def _disk_error(path: Path, message: str, error: OSError) -> RetryableError:
    return RetryableError(
        f"{message}: {error.strerror}",
        where=str(path),
        hint="make room, and make the directory writable for the agent",
    )
