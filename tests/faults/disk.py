"""Injected disk faults: the state-writing calls of an agent are counted, and one of them gets a fault.

`interposer.c` intercepts the calls of the agent's process and of its children, in any language.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("interposer.c")
_LAYOUT = struct.Struct("=qqiiii")
"""struct control of interposer.c: countdown, seen, fault, sticky, hit, recording."""


@dataclass(frozen=True)
class Fault:
    """The result of a call. A sticky fault affects every later call too, until the disk is repaired."""

    name: str
    code: int
    sticky: bool = False

    @property
    def kills(self) -> bool:
        return self.code < 0


FAULTS = (
    Fault("SIGKILL", -1),
    Fault("torn", -2),
    Fault("ENOSPC", errno.ENOSPC),
    Fault("EIO", errno.EIO),
    Fault("EROFS", errno.EROFS),
    Fault("ENOSPC-sticky", errno.ENOSPC, sticky=True),
    Fault("EROFS-sticky", errno.EROFS, sticky=True),
)
"""A torn write kills the process after half of its bytes; other calls are killed before they run."""


def build(folder: Path) -> Path:
    """Compile the interposer with the C compiler that Rust uses for linking."""
    library = folder / "interposer.so"
    command: list[str | Path] = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        library,
        SOURCE,
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return library


class Disk:
    """The directories of one agent with fault injection. Not thread-safe."""

    def __init__(self, library: Path, folder: Path, roots: Iterable[Path], excluded: Iterable[Path] = ()) -> None:
        """`folder` has the control file and the record; calls below `excluded` are neither counted nor hit."""
        folder.mkdir(parents=True, exist_ok=True)
        control = folder / "control"
        control.write_bytes(bytes(_LAYOUT.size))
        self._record = folder / "calls"
        self._handle = os.open(control, os.O_RDWR | os.O_CLOEXEC)
        self._control = mmap.mmap(self._handle, _LAYOUT.size)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAULTS_CONTROL": str(control),
            "FAULTS_LOG": str(self._record),
            "FAULTS_ROOTS": ":".join(map(str, roots)),
            "FAULTS_EXCLUDED": ":".join(map(str, excluded)),
        }

    def close(self) -> None:
        self._control.close()
        os.close(self._handle)

    def arm(self, point: int, fault: Fault) -> None:
        """Inject the fault into call number `point`, counted from 0."""
        self._record.unlink(missing_ok=True)
        self._set(countdown=point + 1, fault=fault)

    def watch(self) -> None:
        """Record every call and let all of them succeed."""
        self._record.unlink(missing_ok=True)
        self._set(countdown=0, recording=True)

    def repair(self) -> None:
        """Let every call succeed from now on."""
        self._set(countdown=0)

    @property
    def was_hit(self) -> bool:
        return bool(_LAYOUT.unpack(self._control[:])[4])

    def calls(self) -> list[str]:
        """Return the recorded calls, one "NAME PATH" each; after `arm` only the calls that were hit."""
        if not self._record.exists():
            return []
        return self._record.read_text().splitlines()

    def _set(self, *, countdown: int, fault: Fault | None = None, recording: bool = False) -> None:
        code, sticky = (fault.code, fault.sticky) if fault is not None else (0, False)
        self._control[:] = _LAYOUT.pack(countdown, 0, code, sticky, 0, recording)
