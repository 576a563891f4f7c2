"""The agent's specs in a CDI directory, one per claim, written atomically.

Files of other tools in the directory are never changed. `registry` reads a directory as runtimes do.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.names import CLAIM_CLASS, check_driver, check_uid, claim_file, uid_of_file
from dra_agent.errors import RetryableError

_MODE = 0o644


class SpecDirectory:
    """The specs of one driver in one directory; safe to use from several threads for different claims."""

    def __init__(self, path: Path, driver: str) -> None:
        self.path = path
        self.driver = check_driver(driver)
        self.kind = f"{driver}/{CLAIM_CLASS}"
        self._spec_path_prefix = f"{path}/{driver}-{CLAIM_CLASS}_"
        self._temporary_prefix = f".{driver}-{CLAIM_CLASS}_"

    def file(self, uid: str) -> Path:
        """Return the path of a claim's spec. Raises PermanentError for a uid that is unsafe in a path."""
        return self.path / claim_file(self.driver, uid)

    def write(self, uid: str, data: bytes) -> Path:
        """Write or replace a claim's spec. Raises RetryableError if it cannot be written.

        Runtimes watch the directory, detect a rename only within it, and read every *.json and *.yaml file, also hidden
        ones: so the temporary file is in the same directory, with another suffix. Not synced: a spec that is lost in a
        power failure is written again at start.
        """
        path = self.file(uid)
        try:
            try:
                atomic_file.write(path, data, mode=_MODE)
            except FileNotFoundError:
                self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
                atomic_file.write(path, data, mode=_MODE)
        except OSError as error:
            if reason := self.replaced_reason():
                raise RetryableError(
                    reason, where=str(self.path), hint="restart the agent, in a pod its pod"
                ) from error
            raise RetryableError(
                f"cannot write the claim's CDI spec: {error.strerror}",
                where=str(path),
                hint="make room and make the directory writable for the agent",
            ) from error
        return path

    def replaced_reason(self) -> str | None:
        """Return a message if the directory was removed from the host while mounted; None otherwise.

        A pod keeps the directory that it mounted, also after the host removed it and created another one. No file can
        be created in the removed one, and no container runtime reads it (st_nlink of stat(2), unlink(2)).
        """
        try:
            links = self.path.stat().st_nlink
        except OSError:
            return None
        return None if links else "the CDI directory was removed or replaced on the host since it was mounted"

    def unwritable_reason(self) -> str | None:
        """Return why no spec can be written; None if specs can be. Creates the directory if it is missing.

        It writes no test file, because container runtimes watch the directory.
        """
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            return f"CDI specs cannot be written: {self.path} cannot be made: {error.strerror}"
        if not os.access(self.path, os.W_OK | os.X_OK):
            return f"CDI specs cannot be written: {self.path} is not writable for the agent"
        return None

    def read(self, uid: str) -> bytes | None:
        """Read a claim's spec; None if it does not exist or is not a regular file."""
        try:
            handle = os.open(
                f"{self._spec_path_prefix}{check_uid(uid)}.json",
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except OSError:
            return None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return None
            return os.read(handle, status.st_size + 1)
        except OSError:
            return None
        finally:
            os.close(handle)

    def ensure(self, uid: str, data: bytes) -> bool:
        """Write a claim's spec if it differs from `data`; True if it was written."""
        if self.read(uid) == data:
            return False
        self.write(uid, data)
        return True

    def delete(self, uid: str) -> bool:
        """Remove a claim's spec; False if there was none. Raises RetryableError if it cannot be removed."""
        path = f"{self._spec_path_prefix}{check_uid(uid)}.json"
        try:
            os.unlink(path)  # noqa: PTH108 - cheaper than a Path
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise RetryableError(f"cannot remove the claim's CDI spec: {error.strerror}", where=path) from error
        return True

    def claims(self) -> dict[str, Path]:
        """Return the paths of all specs by claim uid. Raises RetryableError if the directory cannot be read."""
        found = ((uid_of_file(self.driver, name), name) for name in self._names())
        return {uid: self.path / name for uid, name in sorted(found, key=lambda pair: pair[1]) if uid is not None}

    def remove_leftovers(self) -> list[Path]:
        """Remove temporary files of a killed agent; returns their paths."""
        return atomic_file.remove_leftovers(self.path, self._temporary_prefix)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)  # noqa: PTH208 - names only: no Path per file of a crowded directory
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot list the CDI directory: {error.strerror}", where=str(self.path)) from error
