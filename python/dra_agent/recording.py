"""The format of a recording: the files from which the agent can run as on the host that they were made on.

A recording is a directory with `manifest.json`, which lists the other files with sizes and digests, `tree.jsonl` (what
the agent reads of /sys, /proc and /dev), `nvml.jsonl` (calls of NVIDIA's library; `nvml.call_log` has the format) and
the outputs of tools. It is data from elsewhere: nothing of it is trusted, and everything has a bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import UsageError
from dra_agent.json_decode import decode_json

FORMAT = 1
MANIFEST, TREE, NVML = "manifest.json", "tree.jsonl", "nvml.jsonl"
TOOLS = "tools"
"""The folder of the outputs of tools."""

MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 64
MAX_FILE_BYTES = 64 << 20
MAX_ENTRIES = 200_000
MAX_CONTENT_BYTES = 64 << 10
"""Bytes of one file of the tree; an attribute of /sys has at most 4 KiB, a table of /proc more."""
MAX_LINE_BYTES = 2 * MAX_CONTENT_BYTES + (8 << 10)
MAX_DEPTH = 32
"""Folders above a file; PCI functions behind four switches have 16."""
MAX_PATH_BYTES = 1024

_TOP = ("sys", "proc", "dev")
_FILE = re.compile(rf"(?:{TOOLS}/)?[A-Za-z0-9][A-Za-z0-9._-]{{0,99}}")
_HINT = "record the host again with `dra-agent doctor --record DIR`, or use an unchanged copy"


class RecordedFile(msgspec.Struct, frozen=True):
    """A file of the recording, by its path in it."""

    path: str
    size: int
    sha256: str


class Omission(msgspec.Struct, frozen=True):
    """The missing parts, with reasons."""

    where: str
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of manifest.json; it is written last."""

    format: int
    agent: str
    """Version of the agent that made it."""
    created: str
    """UTC, ISO 8601."""
    kernel: str
    drivers: dict[str, str] = {}
    """Versions of kernel modules."""
    programs: tuple[str, ...] = ()
    """Names of installed programs of vendors that the agent uses."""
    identity: bool = False
    """Whether serial numbers, UUIDs and addresses are those of the host; otherwise they are replaced."""
    files: tuple[RecordedFile, ...] = ()
    omitted: tuple[Omission, ...] = ()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the tree: exactly one of the optional fields is set."""

    path: str
    """From the root: "sys/bus/pci/devices/..."."""
    text: str | None = None
    data: str | None = None
    """Content in hexadecimal, of a file that is not UTF-8."""
    link: str | None = None
    """Target, relative to the link's folder; it stays below the same one of /sys, /proc and /dev."""
    folder: bool = False
    """A folder that has to exist although nothing of its content is needed."""
    node: tuple[int, int, int] | None = None
    """A character device of /dev: major, minor, permission bits."""

    @property
    def content(self) -> bytes:
        """Content of a file."""
        return bytes.fromhex(self.data) if self.data is not None else (self.text or "").encode()


class _Format(msgspec.Struct):
    format: int


def is_recording(path: Path) -> bool:
    """Whether a directory has a manifest, valid or not."""
    return (path / MANIFEST).is_file()


def named_recording(name: str) -> Path | None:
    """Return the absolute path of a recording that is named in place of a profile; None for the name of a profile."""
    path = Path(name)
    is_path = "/" in name or name in (".", "..") or is_recording(path)
    # Without "..": commands compare the path with that of the running agent.
    return Path(os.path.abspath(name)) if is_path else None  # noqa: PTH100


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest and verify size and digest of every file. Raises UsageError with the place."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UsageError("not a directory", where=str(folder), hint="name the directory of a recording")
    try:
        raw = atomic_file.read(path, MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise UsageError(
            f"not a complete recording: there is no {MANIFEST}, which is written last", where=str(folder), hint=_HINT
        ) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path), hint=_HINT) from None
    manifest = decode_manifest(raw, path)
    import hashlib  # not for agents on real devices: it loads OpenSSL

    seen: set[str] = set()
    for number, file in enumerate(manifest.files):
        place = f"{path}: files[{number}]"
        if not _FILE.fullmatch(file.path) or file.path == MANIFEST or file.path in seen:
            raise UsageError(f"not the path of a file of a recording: {file.path!r:.80}", where=place, hint=_HINT)
        seen.add(file.path)
        content = read_file(folder, file)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UsageError(
                "the content is not the recorded one (sha256 differs)", where=str(folder / file.path), hint=_HINT
            )
    return manifest


def decode_manifest(raw: bytes, path: Path) -> Manifest:
    """Decode a manifest that was read from `path`. Raises UsageError if it is invalid or of another format."""
    try:
        found = decode_json(raw, type=_Format).format
        if found != FORMAT:
            raise UsageError(
                f"has format {found}; this version of the agent reads format {FORMAT}",
                where=str(path),
                hint="use the version of dra-agent that made it, or record the host again",
            )
        manifest = decode_json(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a manifest: {error}", where=str(path), hint=_HINT) from None
    if len(manifest.files) > MAX_FILES:
        raise UsageError(f"lists more than {MAX_FILES} files", where=str(path), hint=_HINT)
    return manifest


def read_file(folder: Path, file: RecordedFile) -> bytes:
    """Read a file that the manifest lists; raises UsageError for a link, a device or a larger file."""
    path = folder / file.path
    try:
        if path.parent != folder and path.parent.is_symlink():
            raise UsageError("a link, not a folder", where=str(path.parent), hint=_HINT)
        if not 0 <= file.size <= MAX_FILE_BYTES:
            raise UsageError(f"larger than {MAX_FILE_BYTES >> 20} MiB", where=str(path), hint=_HINT)
        content = atomic_file.read(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise UsageError("missing: the recording is not complete", where=str(path), hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path), hint=_HINT) from None
    if len(content) != file.size:
        raise UsageError(f"has {len(content)} bytes instead of {file.size}", where=str(path), hint=_HINT)
    return content


def parse_tree(content: bytes, where: str) -> list[Entry]:
    """Read the lines of a tree. Raises UsageError with the line."""
    entries: list[Entry] = []
    solid: set[str] = set()
    """Paths that are not folders."""
    folders: set[str] = set()
    for number, line in enumerate(_lines(content, where), 1):
        place = f"{where}:{number}"
        if number > MAX_ENTRIES:
            raise UsageError(f"more than {MAX_ENTRIES} entries", where=place, hint=_HINT)
        try:
            entry = decode_json(line, type=Entry)
        except msgspec.DecodeError as error:
            raise UsageError(f"not an entry of a tree: {error}", where=place, hint=_HINT) from None
        if problem := _problem(entry):
            raise UsageError(problem, where=place, hint=_HINT)
        above = ["/".join(parts) for parts in _parents(entry.path)]
        if entry.path in solid or (entry.path in folders and not entry.folder) or not solid.isdisjoint(above):
            raise UsageError(f"{entry.path}: the path is used by another entry", where=place, hint=_HINT)
        folders.update(above)
        (folders if entry.folder else solid).add(entry.path)
        entries.append(entry)
    return entries


def is_inside(path: str, target: str) -> bool:
    """Whether the target of a link at `path` is relative, and below the link's top folder, through any other links.

    ".." comes first only: folders above an entry are never links, so it leads where the text says. Behind a name, which
    may be another link, it leads from where that one ends. The names that follow are entries of the same rule.
    """
    if not target or target.startswith("/") or "\0" in target or len(target) > MAX_PATH_BYTES:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return ".." not in parts[up:] and up < path.count("/")


def _lines(content: bytes, where: str) -> Iterator[bytes]:
    start, number = 0, 0
    while start < len(content):
        number += 1
        end = content.find(b"\n", start, start + MAX_LINE_BYTES + 1)
        if end < 0:
            reason = "the last line is torn" if len(content) - start <= MAX_LINE_BYTES else "a line is too long"
            raise UsageError(reason, where=f"{where}:{number}", hint=_HINT)
        yield content[start:end]
        start = end + 1


def _problem(entry: Entry) -> str:
    """Return the error of an entry; "" for a valid one."""
    shown = f"{entry.path!r:.80}"
    parts = entry.path.split("/")
    if parts[0] not in _TOP or len(parts) < 2:
        return f"{shown}: not below {', '.join(_TOP)}"
    if any(part in ("", ".", "..") or "\0" in part or len(part.encode(errors="replace")) > 255 for part in parts):
        return f"{shown}: not a plain relative path"
    if len(parts) > MAX_DEPTH + 1 or len(entry.path.encode(errors="replace")) > MAX_PATH_BYTES:
        return f"{shown}: nested too deeply"
    kinds = [entry.text is not None, entry.data is not None, entry.link is not None, entry.folder, bool(entry.node)]
    if sum(kinds) != 1:
        return f"{shown}: not exactly one of text, data, link, folder and node"
    if entry.link is not None and not is_inside(entry.path, entry.link):
        return f"{shown}: a link that leaves the tree: {entry.link!r:.80}"
    if entry.node is not None and (parts[0] != "dev" or not all(0 <= one < 1 << 20 for one in entry.node)):
        return f"{shown}: not a device node of /dev"
    if parts[0] == "dev" and (entry.text is not None or entry.data is not None):
        return f"{shown}: a file in /dev"
    try:
        size = len(entry.content)
    except ValueError:
        return f"{shown}: content that is not hexadecimal"
    return f"{shown}: more than {MAX_CONTENT_BYTES >> 10} KiB" if size > MAX_CONTENT_BYTES else ""


def _parents(path: str) -> Iterator[list[str]]:
    parts = path.split("/")
    return (parts[:length] for length in range(1, len(parts)))
