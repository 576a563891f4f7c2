"""GPUs that the agent currently switches to another partition mode, shared between set-ups and the scan.

While amdgpu changes a mode it removes the GPU's KFD nodes and creates others, and a read of
`current_compute_partition` blocks until then (xcp_lock in drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class _Change:
    deadline: float
    """By the monotonic clock: until when the GPU may appear incomplete."""
    answered: bool
    """True once the write has returned."""


class ModeChanges:
    """Changes by PCI address. Thread-safe; the lock is not held during a write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: dict[str, _Change] = {}

    def begin(self, address: str, seconds: float) -> None:
        """Record that the mode is about to be written; the GPU may take `seconds` to settle."""
        with self._lock:
            self._changes[address] = _Change(time.monotonic() + seconds, answered=False)

    def answered(self, address: str) -> None:
        """Record that the write returned: the GPU may be read again, but may be incomplete."""
        with self._lock:
            if (change := self._changes.get(address)) is not None:
                self._changes[address] = replace(change, answered=True)

    def end(self, address: str) -> None:
        """Record that the GPU has settled, or that the driver refused."""
        with self._lock:
            self._changes.pop(address, None)

    def is_written(self, address: str) -> bool:
        """Return True while the write is in progress: the mode must not be read then."""
        with self._lock:
            change = self._changes.get(address)
        return change is not None and not change.answered

    def is_expected(self, address: str) -> bool:
        """Return True while the GPU may appear incomplete."""
        with self._lock:
            change = self._changes.get(address)
        return change is not None and time.monotonic() < change.deadline
