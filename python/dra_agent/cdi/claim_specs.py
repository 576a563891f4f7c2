"""Builds specs of claims, and keeps the last ones: a repeat with the same input needs no second build and validation.

A spec depends on its input alone. The input is determined for each call: the device nodes, the toolkit's spec and the
files of drivers are read before. So a kept spec is what a build would return.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from dra_agent.cdi.claim import ClaimSpec, SpecDevice, build_spec
from dra_agent.claim import ClaimRef

MAX_KEPT = 64
"""The last specs are kept: 6 KB each with one device of four nodes. Those of other claims are built again."""

_Input = tuple[str, str, list[SpecDevice]]


class ClaimSpecs:
    """The specs of one driver's claims. Thread-safe."""

    def __init__(self, driver: str, *, max_kept: int = MAX_KEPT) -> None:
        self._driver = driver
        self._max_kept = max_kept
        self._kept: dict[str, tuple[_Input, ClaimSpec]] = {}
        self._lock = threading.Lock()

    def build(self, claim: ClaimRef, devices: Sequence[SpecDevice]) -> ClaimSpec:
        """Return the spec of a claim, as `build_spec` does, with its errors."""
        content = (claim.namespace, claim.name, [_without_ids(item) for item in devices])
        known = self._kept.get(claim.uid)
        if known is not None and known[0] == content:
            return known[1]
        spec = build_spec(self._driver, claim, devices)
        with self._lock:
            self._kept.pop(claim.uid, None)
            self._kept[claim.uid] = content, spec
            if len(self._kept) > self._max_kept:
                del self._kept[next(iter(self._kept))]
        return spec


def _without_ids(item: SpecDevice) -> SpecDevice:
    """Leave out what a build adds to the record of a claim, and does not read."""
    if not item.allocated.cdi_device_ids:
        return item
    return SpecDevice(msgspec.structs.replace(item.allocated, cdi_device_ids=()), item.device, item.edits)
