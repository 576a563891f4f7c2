"""What preparing answers: the devices of a claim with their CDI ids, and what was found and mended at start."""

from __future__ import annotations

import msgspec


class PreparedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device of a prepared claim, as the kubelet and the command line are told of it."""

    request_names: tuple[str, ...]
    """Requests of the claim, without the subrequest that was chosen."""
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    """In the order in which a runtime must inject them."""
    share_id: str | None = None
    notes: tuple[str, ...] = ()
    """What a container with the device will miss, in plain words."""


class RecoveryReport(msgspec.Struct, frozen=True):
    """What `recover` found: uids of claims by what became of them."""

    kept: tuple[str, ...] = ()
    """Prepared before, and still whole."""
    rebuilt: tuple[str, ...] = ()
    """Prepared before; the CDI spec or a metadata file was missing or had been changed, and was written again."""
    rolled_back: tuple[str, ...] = ()
    """Begun and not finished: undone, the devices are free."""
    removed: tuple[str, ...] = ()
    """CDI specs of claims that hold nothing: removed."""
    problems: tuple[str, ...] = ()
    """What could not be mended, with claim and reason; the claim still holds its devices."""
    busy: tuple[str, ...] = ()
    """In work elsewhere, and passed over."""
