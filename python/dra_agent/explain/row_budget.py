"""Limits the rows of explanations as data: devices that are rejected for equal reasons are counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_ROWS = 10_000
"""Rows of devices in one document; the 2,048 devices of a host have all for four requests."""
MAX_EQUAL = 3
"""Devices with equal reasons that a longer document lists for one request."""


def shorten(explanations: Iterable[dict[str, Any]], *, everything: bool) -> str:
    """Remove rows from the requests of explanations that have too many together; return what was left out.

    A shortened request has `omitted_devices`. Allocated devices stay. `everything`: nothing is removed.
    """
    requests = [
        request for explanation in explanations for claim in explanation["claims"] for request in claim["requests"]
    ]
    if everything or sum(len(request["devices"]) for request in requests) <= MAX_ROWS:
        return ""
    budget, omitted = MAX_ROWS, 0
    for request in requests:
        kept = _kept(request["devices"], budget)
        budget -= len(kept)
        request["omitted_devices"] = len(request["devices"]) - len(kept)
        omitted += request["omitted_devices"]
        request["devices"] = kept
    return f"{omitted} rows of devices, most of them with the same reasons as others; --all-devices has every device"


def _kept(devices: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    counts: dict[tuple[object, ...], int] = {}
    kept: list[dict[str, Any]] = []
    for device in devices:
        reasons = (device["accepted"], *(rejection["message"] for rejection in device["rejections"]))
        counts[reasons] = counts.get(reasons, 0) + 1
        if device["allocated"] or (counts[reasons] <= MAX_EQUAL and len(kept) < budget):
            kept.append(device)
    return kept
