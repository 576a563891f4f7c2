"""The metadata files of prepared claims on this host: one directory per claim, one file per request.

Containers see a file through a bind mount, which follows the file and not its name: an update is written into the file
that is there, so that running containers see it too.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.metadata import ClaimIdentity, RequestMetadata, document, generation_of, mount
from dra_agent.cdi.model import Mount
from dra_agent.cdi.names import check_driver, check_uid, is_uid
from dra_agent.errors import RetryableError

log = logging.getLogger(__name__)

_MODE = 0o644


class MetadataDirectory:
    """The files of one driver; safe to use from several threads for different claims."""

    def __init__(self, path: Path, driver: str, *, enabled: bool = True) -> None:
        self.path = path
        self.driver = check_driver(driver)
        self.enabled = enabled
        """Where not, nothing is written, and what an earlier run wrote is removed."""

    def file(self, uid: str, request: str) -> Path:
        """Say where the file of a request lies."""
        return self.path / check_uid(uid) / f"{request}.json"

    def mounts(self, claim: ClaimIdentity, requests: Sequence[RequestMetadata]) -> Mapping[str, Mount]:
        """Say by request what containers mount; nothing where the files are not wanted."""
        if not self.enabled:
            return {}
        return {
            item.request: mount(self.driver, claim, item.request, str(self.file(claim.uid, item.request)))
            for item in requests
        }

    def ensure(self, claim: ClaimIdentity, requests: Sequence[RequestMetadata]) -> bool:
        """Make a claim's files be what they have to be; True where one was missing or damaged.

        A change of what a file says makes a new generation of it. RetryableError where the disk refuses.
        """
        return bool(self.enabled and [item for item in requests if self._ensure(claim, item)])

    def delete(self, uid: str) -> bool:
        """Remove a claim's files; False where there were none. RetryableError where the disk refuses."""
        folder = self.path / check_uid(uid)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RetryableError(f"cannot remove the claim's metadata: {error.strerror}", where=str(folder)) from error
        return True

    def prune(self, uids: Collection[str]) -> list[str]:
        """Remove the files of all other claims, and of all where they are not wanted; gives what was removed."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names only
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot list the metadata files: {error.strerror}", where=str(self.path)) from error
        wanted = set(uids) if self.enabled else set()
        return [name for name in sorted(names) if name not in wanted and is_uid(name) and self.delete(name)]

    def _ensure(self, claim: ClaimIdentity, item: RequestMetadata) -> bool:
        path = self.file(claim.uid, item.request)
        there = _read(path)
        before = generation_of(there) if there is not None else None
        if before is not None:
            if there == document(self.driver, claim, item, before):
                return False
            self._write(path, document(self.driver, claim, item, before + 1), in_place=True)
            log.info("device metadata changed", extra={"claim": claim.uid, "request": item.request})
            return False
        self._write(path, document(self.driver, claim, item, 1), in_place=there is not None)
        return True

    def _write(self, path: Path, data: bytes, *, in_place: bool) -> None:
        try:
            if in_place:
                _overwrite(path, data)
            else:
                _create(path, data)
        except OSError as error:
            raise RetryableError(
                f"cannot write the claim's metadata: {error.strerror}",
                where=str(path),
                hint="make room and make the directory writable for the agent",
            ) from error


def _read(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        return os.read(handle, status.st_size + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def _overwrite(path: Path, data: bytes) -> None:
    """Write first and cut off after: a reader in between finds the new document, followed by rest of the old one."""
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        atomic_file.write_all(handle, data)
        os.ftruncate(handle, len(data))
        os.fchmod(handle, _MODE)
    finally:
        os.close(handle)


def _create(path: Path, data: bytes) -> None:
    """Put a new file in place. Not synced: what a power cut took is written again at start."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    atomic_file.write(path, data, mode=_MODE)
