"""The agent's own files in a CDI directory: one per claim, written whole or not at all, read back, listed, removed.

Files of others in the same directory are never touched; how runtimes see the directory is told by `registry`.
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
        self._start = f"{path}/{driver}-{CLAIM_CLASS}_"
        self._prefix = f".{driver}-{CLAIM_CLASS}_"

    def file(self, uid: str) -> Path:
        """Say where a claim's spec lies; PermanentError for a uid that could leave the directory."""
        return self.path / claim_file(self.driver, uid)

    def write(self, uid: str, data: bytes) -> Path:
        """Put a claim's spec in place of the one that is there, if any; RetryableError where the disk refuses.

        Runtimes watch the directory and notice a rename only from within it, and they read every *.json and *.yaml,
        dot files too: hence a temporary file in the same directory with neither ending. Not synced: a spec that a
        power cut took is written again at start.
        """
        path = self.file(uid)
        try:
            try:
                atomic_file.write(path, data, mode=_MODE)
            except FileNotFoundError:
                self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
                atomic_file.write(path, data, mode=_MODE)
        except OSError as error:
            if reason := self.replaced():
                raise RetryableError(
                    reason, where=str(self.path), hint="restart the agent, in a pod its pod"
                ) from error
            raise RetryableError(
                f"cannot write the claim's CDI spec: {error.strerror}",
                where=str(path),
                hint="make room and make the directory writable for the agent",
            ) from error
        return path

    def replaced(self) -> str:
        """Say that the directory has no name any more; "" where it has one, or is not there.

        A pod goes on seeing the directory that it mounted after the host removed it and made another one. Nothing can
        be created in the removed one, and no container runtime reads it (st_nlink of stat(2), unlink(2)).
        """
        try:
            links = self.path.stat().st_nlink
        except OSError:
            return ""
        return "" if links else "the CDI directory was removed or replaced on the host since it was mounted"

    def unwritable(self) -> str | None:
        """Return why no spec can be written, and None where one can; the directory is made where it is missing.

        No file is written for that: container runtimes watch the directory.
        """
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            return f"CDI specs cannot be written: {self.path} cannot be made: {error.strerror}"
        if not os.access(self.path, os.W_OK | os.X_OK):
            return f"CDI specs cannot be written: {self.path} is not writable for the agent"
        return None

    def read(self, uid: str) -> bytes | None:
        """Read a claim's spec; None where there is none, or something that is not a plain file."""
        try:
            handle = os.open(
                f"{self._start}{check_uid(uid)}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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
        """Make a claim's spec be exactly `data`; True where it had to be written."""
        if self.read(uid) == data:
            return False
        self.write(uid, data)
        return True

    def delete(self, uid: str) -> bool:
        """Remove a claim's spec; False where there was none. RetryableError where the disk refuses."""
        path = f"{self._start}{check_uid(uid)}.json"
        try:
            os.unlink(path)  # noqa: PTH108 - no Path for each release
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise RetryableError(f"cannot remove the claim's CDI spec: {error.strerror}", where=path) from error
        return True

    def claims(self) -> dict[str, Path]:
        """List the claims that have a spec here, by uid; RetryableError where the directory cannot be read."""
        found = ((uid_of_file(self.driver, name), name) for name in self._names())
        return {uid: self.path / name for uid, name in sorted(found, key=lambda pair: pair[1]) if uid is not None}

    def remove_leftovers(self) -> list[Path]:
        """Remove temporary files of this driver's specs that a killed agent left, and return their paths."""
        return atomic_file.remove_leftovers(self.path, self._prefix)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)  # noqa: PTH208 - names only: no Path per file of a crowded directory
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot list the CDI directory: {error.strerror}", where=str(self.path)) from error
