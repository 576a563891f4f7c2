"""A claim and its devices, as every part of the agent names them.

Not in `prepare`, because `cdi`, which `prepare` builds on, takes both. JSON field names are as in the ledger.
"""

from __future__ import annotations

import msgspec


class ClaimRef(msgspec.Struct, frozen=True):
    """Identity of a ResourceClaim. Types that are a claim with more fields derive from it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"claim {self.full_name}"

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def with_uid(self) -> str:
        """With the uid, for errors: "claim team-a/training (0b5c...)"."""
        return f"claim {self.full_name} ({self.uid})"


class ClaimDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that is allocated to a claim, or one share of it."""

    pool: str
    device: str
    requests: tuple[str, ...]
    """Requests that it satisfies, without the subrequest, as the kubelet knows them."""
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: dict[str, str] = {}
    """The claim's part of a shared device (Quantity by capacity)."""
    cdi_device_ids: tuple[str, ...] = ()
    """In the order in which a runtime injects them; empty until the CDI spec is built."""
    results: tuple[str, ...] = ()
    """Requests as the allocation names them, if one has a subrequest ("gpus/h100"); else empty."""
    notes: tuple[str, ...] = ()
    """Missing features in a container with the device. Only in results of `prepare`, never in the ledger."""

    @property
    def key(self) -> str:
        """Its name among the devices of the claim: "gpu-0", or "gpu-0/SHARE_ID" for a share."""
        return claim_device_key(self.device, self.share_id)

    @property
    def allocated_requests(self) -> tuple[str, ...]:
        """Requests as the allocation names them."""
        return self.results or self.requests


def claim_device_key(device: str, share_id: str | None) -> str:
    """Return the name of a device, or of one share of it, among the devices of its claim."""
    return device if share_id is None else f"{device}/{share_id}"
