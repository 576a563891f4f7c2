"""A prepared claim described for its containers: the metadata files of its requests, and which device brings which."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_agent.cdi.claim import ClaimedDevice
from dra_agent.cdi.metadata import DescribedClaim, DescribedRequest, described
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.device import Device
from dra_agent.prepare.allocation import Allocation
from dra_agent.prepare.record import ClaimRecord


@dataclass(frozen=True, slots=True)
class Description:
    """What the files of one claim say, and which device of it mounts which."""

    directory: MetadataDirectory
    claim: DescribedClaim
    requests: tuple[DescribedRequest, ...]
    brings: tuple[tuple[str, ...], ...]
    """For each device of the record, the requests whose file it mounts."""

    def write(self) -> bool:
        """Make the files be what they have to be; True where one was missing or damaged."""
        return self.directory.ensure(self.claim, self.requests)

    def mounted(self, devices: Sequence[ClaimedDevice]) -> list[ClaimedDevice]:
        """Add the mounts to what the devices bring."""
        mounts = self.directory.mounts(self.claim, self.requests)
        return [
            _with(device, ContainerEdits(mounts=tuple(mounts[request] for request in requests)))
            for device, requests in zip(devices, self.brings, strict=True)
        ]


def describe(
    directory: MetadataDirectory, claim: Allocation, record: ClaimRecord, find: Callable[[str, str], Device]
) -> Description:
    """Describe a claim's devices as the inventory has them now."""
    requests, brings = described(
        [(item.results or item.requests, item.pool, find(item.pool, item.device)) for item in record.devices]
    )
    identity = DescribedClaim(claim.uid, claim.namespace, claim.name, record.pod_claim_name)
    return Description(directory, identity, requests, brings)


def _with(claimed: ClaimedDevice, edits: ContainerEdits) -> ClaimedDevice:
    return dataclasses.replace(claimed, edits=dataclasses.replace(claimed.edits, own=claimed.edits.own.merged(edits)))
