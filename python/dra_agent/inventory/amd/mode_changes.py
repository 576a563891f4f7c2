"""Which AMD GPUs the agent itself puts into another compute partition mode now: who does it tells those who look.

While the driver changes a mode it takes the GPU's KFD nodes away and makes others, and whoever reads
`current_compute_partition` waits until it has done so (xcp_lock in drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class _Change:
    until: float
    """By the monotonic clock: how long the GPU may look half made."""
    answered: bool
    """Whether the driver has come back from the write."""


class ModeChanges:
    """By PCI address; safe to use from several threads. Its lock is held for no write: nothing waits for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: dict[str, _Change] = {}

    def begin(self, address: str, seconds: float) -> None:
        """Note that the mode is about to be written, and how long the GPU may take until it has settled in it."""
        with self._lock:
            self._changes[address] = _Change(time.monotonic() + seconds, answered=False)

    def answered(self, address: str) -> None:
        """Note that the driver has come back: the GPU may be asked again, and is perhaps not complete yet."""
        with self._lock:
            if (change := self._changes.get(address)) is not None:
                self._changes[address] = replace(change, answered=True)

    def end(self, address: str) -> None:
        """Note that the GPU has settled, or that the driver has refused."""
        with self._lock:
            self._changes.pop(address, None)

    def is_written(self, address: str) -> bool:
        """Whether the driver is still at it, however long: then nothing may be asked about the mode."""
        with self._lock:
            change = self._changes.get(address)
        return change is not None and not change.answered

    def is_expected(self, address: str) -> bool:
        """Whether the GPU may still look half made."""
        with self._lock:
            change = self._changes.get(address)
        return change is not None and time.monotonic() < change.until
