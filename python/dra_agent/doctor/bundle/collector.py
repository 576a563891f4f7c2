"""Collects the parts of a bundle, each within a deadline and a size, and lists missing parts in a manifest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_agent import revision
from dra_agent.doctor.bundle.archive import pack
from dra_agent.doctor.bundle.content import Content, MissingPartError, Text, learn, redacted
from dra_agent.doctor.bundle.redaction import Redactor
from dra_agent.doctor.record.identity import Replacements
from dra_agent.errors import AgentError
from dra_agent.threads import NoThreadError, start_thread

MANIFEST = "MANIFEST.json"
MAX_FILE_BYTES = 8 << 20
"""Of one file. Of a log the end is kept, of anything else the beginning."""
MAX_TOTAL_BYTES = 96 << 20
MAX_OMISSIONS = 1000


@dataclass(slots=True)
class Files:
    """The result of a part: its files, and the missing ones."""

    contents: list[Content] = field(default_factory=list)
    omitted: list[tuple[str, str]] = field(default_factory=list)
    """Where, and why."""


class BundleFile(msgspec.Struct, frozen=True):
    """A file of the bundle, by its path in it."""

    path: str
    size: int
    sha256: str


class BundleOmission(msgspec.Struct, frozen=True):
    """Something that is missing, cut or late."""

    part: str
    where: str
    reason: str


class BundlePart(msgspec.Struct, frozen=True):
    """The collected parts, and their duration."""

    name: str
    complete: bool
    seconds: float


class BundleManifest(msgspec.Struct, frozen=True):
    """The contents of a bundle."""

    format: int
    agent: str
    created: str
    user: int
    """The effective user id: other users than root read less."""
    identity: bool
    """Whether serial numbers, UUIDs, addresses and the name of the host were kept."""
    credentials_removed: bool
    """Whether there were any."""
    parts: tuple[BundlePart, ...]
    files: tuple[BundleFile, ...]
    omitted: tuple[BundleOmission, ...]


class Bundle:
    """Parts are added one after another; `pack` redacts all of them, since one may name a credential of another."""

    def __init__(self, redactor: Redactor, replacements: Replacements | None, *, user: int) -> None:
        """`replacements` is None to keep the identity of the host."""
        self._redactor = redactor
        self._replacements = replacements
        self._user = user
        self._contents: list[tuple[str, Content]] = []
        self._omitted: list[BundleOmission] = []
        self._parts: dict[str, float] = {}

    def add(self, name: str, timeout_s: float, work: Callable[[], Content | Files | None]) -> None:
        """Collect a part on a thread that is abandoned at the deadline: a driver may never return.

        An error of the part is the reason why it is missing.
        """
        found: list[Files] = []
        failed: list[str] = []

        def run() -> None:
            try:
                result = work()
            except (MissingPartError, AgentError) as error:
                failed.append(str(error))
            except OSError as error:
                failed.append(f"{error.filename or name}: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - one part that fails must not lose the others
                failed.append(f"{type(error).__name__}: {error}")
            else:
                found.append(result if isinstance(result, Files) else Files([result] if result is not None else []))

        start = time.monotonic()
        try:
            start_thread(f"bundle {name}", run).join(timeout_s)
        except NoThreadError as error:
            failed.append(str(error))
        self._parts[name] = round(time.monotonic() - start, 3)
        for files in found[:1]:
            self._contents += [(name, content) for content in files.contents]
            self._omit(name, files.omitted)
        if not found:
            self._omit(name, [(name, failed[0] if failed else f"not complete within {timeout_s:g} s")])

    def pack(self) -> tuple[BundleManifest, bytes]:
        """Redact everything; return the manifest and the archive."""
        for _, content in self._contents:
            learn(content, self._redactor, self._replacements)
        files: dict[str, bytes] = {}
        total = 0
        for name, content in self._contents:
            for file, data in self._limited(name, content, redacted(content, self._redactor, self._replacements)):
                if total + len(data) > MAX_TOTAL_BYTES:
                    self._omit(name, [(file, f"the bundle would exceed {MAX_TOTAL_BYTES >> 20} MiB")])
                    continue
                total += len(data)
                files[file] = data
        created = datetime.now(UTC)  # noqa: TID251 - a moment that people are shown
        manifest = self._manifest(files, created)
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        return manifest, pack({MANIFEST: encoded, **files}, created)

    def _limited(self, part: str, content: Content, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        for path, data in files:
            if content.is_whole or len(data) <= MAX_FILE_BYTES:
                yield path, data
            elif isinstance(content, Text) and content.is_log:
                self._omit(part, [(path, f"cut: the last {MAX_FILE_BYTES >> 20} MiB of {len(data)} bytes")])
                yield path, data[-MAX_FILE_BYTES:].partition(b"\n")[2]
            else:
                self._omit(part, [(path, f"cut: the first {MAX_FILE_BYTES >> 20} MiB of {len(data)} bytes")])
                yield path, data[:MAX_FILE_BYTES]

    def _omit(self, part: str, omitted: Iterable[tuple[str, str]]) -> None:
        self._omitted += [BundleOmission(part, where, reason) for where, reason in omitted]

    def _manifest(self, files: dict[str, bytes], created: datetime) -> BundleManifest:
        incomplete = {omission.part for omission in self._omitted}
        manifest = BundleManifest(
            format=1,
            agent=revision.describe(),
            created=created.isoformat(timespec="seconds"),
            user=self._user,
            identity=self._replacements is None,
            credentials_removed=False,
            parts=tuple(BundlePart(name, name not in incomplete, took) for name, took in self._parts.items()),
            files=tuple(BundleFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()),
            omitted=tuple(self._plain(omission) for omission in self._omitted[:MAX_OMISSIONS]),
        )
        return msgspec.structs.replace(manifest, credentials_removed=self._redactor.removed > 0)

    def _plain(self, omission: BundleOmission) -> BundleOmission:
        """Return an omission as it may be sent: errors quote paths and outputs."""
        values: list[Any] = []
        for text in (omission.where, omission.reason):
            clean = self._redactor.text(text)
            values.append(clean if self._replacements is None else self._replacements.text(clean))
        return BundleOmission(omission.part, *values)
