"""The files of a claim that containers read: its CDI spec, and the metadata files that the spec mounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_agent.cdi.claim import ClaimSpec, SpecDevice
from dra_agent.cdi.claim_specs import ClaimSpecs
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.metadata import ClaimMetadata, MetadataDirectory, claim_metadata
from dra_agent.cdi.model import ContainerEdits
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.prepare.local_devices import LocalDevices
from dra_agent.prepare.record import ClaimRecord


class ClaimFiles:
    """Composes, writes and removes the files of claims; safe to use from several threads for different claims."""

    def __init__(
        self,
        driver: str,
        specs: SpecDirectory,
        devices: LocalDevices,
        edit_providers: EditProviders,
        metadata: MetadataDirectory | None,
    ) -> None:
        """`metadata` is None, or not enabled, if claims get no metadata files."""
        self._specs = specs
        self._built = ClaimSpecs(driver)
        self._devices = devices
        self._edit_providers = edit_providers
        self._metadata = metadata

    def build(self, claim: ClaimRef, record: ClaimRecord, extra: Mapping[str, ContainerEdits]) -> ClaimSpec:
        """Compose the spec of a claim; `extra` are the edits of its set-ups, by device key.

        Raises:
            RetryableError: A device is not on this host now, or cannot be used at this moment.
        """
        devices = [self._spec_device(item, extra.get(item.key)) for item in record.devices]
        if self._metadata is not None and self._metadata.enabled:
            devices = self._metadata.with_mounts(self._describe(claim, record), devices)
        return self._built.build(claim, devices)

    def write_new(self, claim: ClaimRef, record: ClaimRecord, spec: ClaimSpec) -> None:
        """Write the files of a claim without reading the spec.

        There is none, unless an agent was killed while it undid another attempt; it is replaced then.
        """
        self._ensure_metadata(claim, record)
        self._specs.write(claim.uid, spec.data)

    def ensure(self, claim: ClaimRef, record: ClaimRecord, spec: ClaimSpec) -> bool:
        """Write the files of a claim that are missing or different; True if one was written."""
        written = self._ensure_metadata(claim, record)
        return self._specs.ensure(claim.uid, spec.data) or written

    def remove(self, uid: str) -> bool:
        """Remove the files of a claim; False if there were none. First the spec, because it mounts the others."""
        known = self._specs.delete(uid)
        return (self._metadata is not None and self._metadata.delete(uid)) or known

    def claims_with_spec(self) -> set[str]:
        """Return the uids of claims that have a spec of this driver, which another agent may have written."""
        return set(self._specs.claims())

    def claims_with_metadata(self) -> set[str]:
        """Return the uids of claims that have metadata files."""
        return set() if self._metadata is None else set(self._metadata.claims())

    def remove_leftovers(self, with_metadata: Iterable[str]) -> None:
        """Remove temporary files of exited writers, and metadata files of `with_metadata` if claims get none now."""
        self._specs.remove_leftovers()
        if self._metadata is not None and not self._metadata.enabled:
            for uid in with_metadata:  # of runs with another configuration
                self._metadata.delete(uid)

    def _ensure_metadata(self, claim: ClaimRef, record: ClaimRecord) -> bool:
        # Before the spec that mounts them.
        if self._metadata is None or not self._metadata.enabled:
            return False
        return self._metadata.ensure(self._describe(claim, record))

    def _describe(self, claim: ClaimRef, record: ClaimRecord) -> ClaimMetadata:
        return claim_metadata(
            ClaimRef(claim.uid, claim.namespace, claim.name),
            record.pod_claim_name,
            [(item, self._devices.find(item.pool, item.device)) for item in record.devices],
        )

    def _spec_device(self, item: ClaimDevice, extra: ContainerEdits | None) -> SpecDevice:
        device = self._devices.find(item.pool, item.device)
        edits = self._edit_providers.edits(device)
        if extra is not None:
            edits = edits.with_setup(extra)
        return SpecDevice(item, device, edits)
