"""A prepared claim described for its containers: the metadata files of its requests, and which device brings which."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_agent.cdi.claim import SpecDevice
from dra_agent.cdi.metadata import ClaimIdentity, RequestMetadata, group_by_request
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import Device
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.record import ClaimRecord


@dataclass(frozen=True, slots=True)
class ClaimMetadata:
    """What the files of one claim say, and which device of it mounts which."""

    directory: MetadataDirectory
    claim: ClaimIdentity
    requests: tuple[RequestMetadata, ...]
    brings: tuple[tuple[str, ...], ...]
    """For each device of the record, the requests whose file it mounts."""

    def write(self) -> bool:
        """Make the files be what they have to be; True where one was missing or damaged."""
        return self.directory.ensure(self.claim, self.requests)

    def mounted(self, devices: Sequence[SpecDevice]) -> list[SpecDevice]:
        """Add the mounts to what the devices bring."""
        mounts = self.directory.mounts(self.claim, self.requests)
        return [
            _with(device, ContainerEdits(mounts=tuple(mounts[request] for request in requests)))
            for device, requests in zip(devices, self.brings, strict=True)
        ]


def describe(
    directory: MetadataDirectory, claim: ClaimAllocation, record: ClaimRecord, find: Callable[[str, str], Device]
) -> ClaimMetadata:
    """Describe a claim's devices as the inventory has them now."""
    requests, brings = group_by_request(
        [(item.results or item.requests, item.pool, find(item.pool, item.device)) for item in record.devices]
    )
    identity = ClaimIdentity(claim.uid, claim.namespace, claim.name, record.pod_claim_name)
    return ClaimMetadata(directory, identity, requests, brings)


def _with(claimed: SpecDevice, edits: ContainerEdits) -> SpecDevice:
    return dataclasses.replace(claimed, edits=dataclasses.replace(claimed.edits, own=claimed.edits.own.merged(edits)))
