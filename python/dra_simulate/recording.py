"""Builds a simulated host from a recording of a real one: its tree, and the NVML library with the recorded state.

Nothing outside of the root is written, and device nodes become empty files: the numbers in a recording are those of
another machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError, UsageError
from dra_agent.host import Host
from dra_agent.nvml import call_log
from dra_agent.nvml.call_log import CallLogError, RecordedCall
from dra_agent.recording import (
    MANIFEST,
    NVML,
    TREE,
    Entry,
    Manifest,
    load_manifest,
    named_recording,
    parse_tree,
    read_file,
)
from dra_simulate import mig, mps, nvidia_smi, nvml, nvml_install
from dra_simulate.recording_nvml import derive
from dra_simulate.tree import replace_file

MARKER = "recording.json"
"""Below the root; it is written last, and names the recording."""
_MPS = "nvidia-cuda-mps-control"
_TOP = ("sys", "proc", "dev")
_FUNCTION_NOT_FOUND = 13
"""Of nvmlReturn_t."""


class _Marker(msgspec.Struct, frozen=True):
    manifest: str
    """SHA-256 of the recording's manifest."""


class Recording:
    """A recording that was read and checked."""

    def __init__(self, folder: Path) -> None:
        """Read it. Raises UsageError with the file and place of the error."""
        self.folder = folder
        self.manifest: Manifest = load_manifest(folder)
        files = {file.path: file for file in self.manifest.files}
        if TREE not in files:
            raise UsageError(f"lists no {TREE}", where=str(folder / MANIFEST), hint="use a complete recording")
        self.entries: list[Entry] = parse_tree(read_file(folder, files[TREE]), str(folder / TREE))
        self.calls: list[RecordedCall] = []
        if NVML in files:
            try:
                self.calls = call_log.parse(read_file(folder, files[NVML]))
            except CallLogError as error:
                place = f"{folder / NVML}:{error.line}"
                raise UsageError(str(error), where=place, hint="use an unchanged copy of the recording") from None

    @property
    def digest(self) -> str:
        """Which recording it is."""
        return hashlib.sha256(msgspec.json.encode(self.manifest)).hexdigest()


def folder_name(name: str) -> str:
    """Return the name of the folder in which a simulated host of this profile or recording is kept."""
    path = named_recording(name)
    return name if path is None else f"recording-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"


def build_recording(folder: Path, root: Path) -> Host:
    """Make `root` the host of a recording; an existing one of the same recording keeps the state of its library.

    Raises UsageError for an invalid recording, PermanentError where `root` holds something else.
    """
    recording = Recording(folder)
    root = root.absolute()
    marker = msgspec.json.encode(_Marker(recording.digest))
    has_smi = "nvidia-smi" in recording.manifest.programs and bool(recording.calls)
    tool = root / nvidia_smi.TOOL if has_smi else None
    host = Host(root / "sys", root / "dev", root / "proc", root / "lib" / nvml.LIBRARY, nvidia_smi=tool)
    if _read(root / MARKER) == marker:
        return host
    if nvml.is_foreign(root):
        raise _another_host(root)
    state, partitioning = library_state(recording)
    with nvml.locked(root / "lib"):
        # Another process may have built the same host before the lock was held.
        if _read(root / MARKER) == marker:
            return host
        if any(entry.name != "lib" for entry in root.iterdir()):
            raise _another_host(root)
        for name in _TOP:
            (root / name).mkdir()
        for entry in recording.entries:
            _create(root / entry.path, entry)
        if recording.calls:
            nvml_install.install_library(root / "lib", missing=_missing(recording.calls))
            nvml.write(root / "lib", state)
            if partitioning:
                replace_file(root / "lib" / mig.STATE, msgspec.json.encode(partitioning))
            if has_smi:
                nvidia_smi.install(root)
            if _MPS in recording.manifest.programs:
                mps.install(root / "lib")
        replace_file(root / MARKER, marker)
    return host


def _another_host(root: Path) -> PermanentError:
    return PermanentError(
        "holds another simulated host, or a part of one",
        where=str(root),
        hint=f"remove it (rm -r {root}) or name another directory",
    )


class RecordedKernel:
    """The kernel of a recorded host: it accepts no writes, because their effect is not recorded."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, path: str, text: str) -> None:
        """Raise OSError (EROFS)."""
        raise OSError(errno.EROFS, "the host is a recording, which cannot be changed", f"/sys/{path}")

    def read(self, path: str) -> str:
        """Read an attribute."""
        return (self._root / "sys" / path).read_text()


def library_state(recording: Recording) -> tuple[nvml.NvmlState, dict[str, mig.GpuPartitioning]]:
    """Derive the state of the library from its recorded calls, and the partitioning of its GPUs. Raises UsageError."""
    try:
        state, partitioning = derive(recording.calls, recording.entries)
        # A result of another type than the function's is found here, and not by the library.
        return msgspec.convert(msgspec.to_builtins(state), nvml.NvmlState), partitioning
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise UsageError(
            f"the calls do not fit together: {type(error).__name__}: {error}",
            where=str(recording.folder / NVML),
            hint="use an unchanged copy of the recording",
        ) from None


def _missing(calls: list[RecordedCall]) -> tuple[str, ...]:
    """Return the functions that the recorded library does not have, or that were not recorded."""
    limits = any(call.name == "has_memory_limits" and call.value is True for call in calls)
    fabric = any(call.name in nvml_install.FABRIC_4 and call.code not in (None, _FUNCTION_NOT_FOUND) for call in calls)
    return (() if limits else nvml_install.MEMORY_LIMITS) + (() if fabric else nvml_install.FABRIC_4)


def _create(path: Path, entry: Entry) -> None:
    """Write one entry; `parse_tree` has rejected entries below a link or a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.folder:
        path.mkdir(exist_ok=True)
    elif entry.link is not None:
        path.symlink_to(entry.link)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            os.write(descriptor, entry.content)
        finally:
            os.close(descriptor)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
