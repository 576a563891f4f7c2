"""A claim as the command line shows it, of the object in the store and what the queue knows besides."""

from __future__ import annotations

from dra_agent.standalone.claim import DEFAULT_NAMESPACE, ClaimView, HeldDevice, Phase
from dra_agent.standalone.index import FAILED, PREPARED
from dra_agent.standalone.ports import Object


def view_of(
    claim: Object, prepared: tuple[HeldDevice, ...] | None, message: str, *, fits_empty_host: bool
) -> ClaimView:
    """Show a claim; `prepared`: its devices once they are ready for containers, `message`: why they are not."""
    metadata = claim["metadata"]
    annotations = metadata.get("annotations", {})
    devices = prepared or ()
    return ClaimView(
        namespace=metadata.get("namespace", DEFAULT_NAMESPACE),
        name=metadata["name"],
        uid=metadata["uid"],
        phase=_phase(claim, prepared is not None),
        message=annotations.get(FAILED) or message,
        created=metadata["creationTimestamp"],
        prepared=annotations.get(PREPARED, "") if prepared is not None else "",
        devices=devices,
        cdi_device_ids=tuple(cdi_id for device in devices for cdi_id in device.cdi_device_ids),
        fits_empty_host=fits_empty_host,
        claim=claim,
    )


def _phase(claim: Object, prepared: bool) -> Phase:
    if "deletionTimestamp" in claim["metadata"]:
        return "Deleting"
    if FAILED in claim["metadata"].get("annotations", {}):
        return "Failed"
    if "allocation" not in claim.get("status", {}):
        return "Pending"
    return "Prepared" if prepared else "Allocated"
