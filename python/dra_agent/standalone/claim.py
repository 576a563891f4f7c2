"""What standalone mode says of a claim: where it stands, why, and what a container runtime is given for it.

The objects themselves are the API's own; nothing here is stored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Phase = Literal["Pending", "Allocated", "Prepared", "Unhealthy", "Failed", "Deleting"]
"""Pending: waits for devices. Allocated: has devices, not prepared yet. Failed: can never be prepared as it is."""

DEFAULT_NAMESPACE = "default"
UNDER_WAY = "is being prepared"
"""The message of a claim that has devices and is not ready yet."""


class HeldDevice(msgspec.Struct, frozen=True):
    """One device of a prepared claim."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


class ClaimView(msgspec.Struct, frozen=True):
    """A claim as the command line shows it."""

    namespace: str
    name: str
    uid: str
    phase: Phase
    message: str
    """Why it is not prepared, or why a device of it cannot be used; empty where neither is so."""
    created: str
    """RFC 3339, UTC."""
    prepared: str
    """Since when it is prepared without a break, as `created`; empty while it is not."""
    devices: tuple[HeldDevice, ...]
    cdi_device_ids: tuple[str, ...]
    """Every id of every device, in order: for `podman run --device ID` and `ctr run --device ID`."""
    fits_empty_host: bool
    """False: even with nothing else claimed this host could not satisfy it."""
    claim: dict[str, Any]
    """The ResourceClaim itself, with status.allocation once it is allocated."""


class ApplyResult(msgspec.Struct, frozen=True):
    """What became of one applied object."""

    kind: str
    name: str
    action: Literal["created", "configured", "unchanged"]
    namespace: str = ""
    claim: ClaimView | None = None


def key_of(claim: dict[str, Any]) -> tuple[str, str]:
    """Give the (namespace, name) of a claim."""
    metadata = claim["metadata"]
    return metadata.get("namespace") or DEFAULT_NAMESPACE, metadata["name"]
