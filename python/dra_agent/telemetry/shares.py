"""Memory of claims that share a device: what `dra-agent claim usage` counts for each of them, or nothing.

Counters of a cgroup or of processes belong to a claim by the pod that their cgroup names. If one of the processes that
use a device may be of any other claim, no claim of this device has a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dra_agent.claim import ClaimRef
from dra_agent.device_setup.shares.usage import UsageReader, held_shares
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory, device_key
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.telemetry.claims import Holders
from dra_agent.telemetry.model import DeviceSample

CALL_TIMEOUT_S = 2.0
UNKNOWN_PODS = "the pods of the claim are not known"

ShareSamples = dict[tuple[ClaimRef, str], DeviceSample]
"""Memory by claim and name of the device."""


class ShareReader:
    """Reads the memory of shares; used by one thread."""

    def __init__(
        self, host: Host, state_dir: Path, pods: Callable[[], Mapping[str, frozenset[str]]], *, standalone: bool
    ) -> None:
        """`pods` returns the UIDs of the pods of claims. `standalone`: claims have no pods."""
        self._host = host
        self._state_dir = state_dir
        self._pods = pods
        self._standalone = standalone

    def read(self, entries: Sequence[LedgerEntry], inventory: Inventory, exclusive: Holders) -> ShareSamples:
        """Return the memory of prepared claims on devices that they do not hold alone."""
        known = self._pods()
        pods = {entry.uid: known.get(entry.uid, UNKNOWN_PODS) for entry in entries}
        holdings = held_shares(entries, {} if self._standalone else pods)
        claims = {entry.uid: entry for entry in entries if entry.state == "completed"}
        devices: dict[tuple[str, str], Device] = {(one.family, one.name): one for one in inventory.devices}
        everything = [held for held, _ in holdings]
        reader: UsageReader | None = None
        found: ShareSamples = {}
        seen: set[tuple[str, str]] = set()
        try:
            for held, has_amount in holdings:
                device = devices.get(device_key(held.pool, held.key.partition("/")[0]))
                entry = claims.get(held.uid)
                if device is None or entry is None or not has_amount or device.name in exclusive:
                    continue
                if reader is None:
                    reader = UsageReader(
                        self._host,
                        self._state_dir,
                        CALL_TIMEOUT_S,
                        everything,
                        standalone=self._standalone,
                        is_sample=True,
                    )
                usage = reader.read(held, device)
                claim = ClaimRef(entry.uid, entry.namespace, entry.name)
                if usage.used is None or (held.uid, device.name) in seen:
                    found.pop((claim, device.name), None)  # several shares: the sum of both is not counted
                else:
                    # Its limit is one of each container or process, so several can use more.
                    found[claim, device.name] = DeviceSample(memory_used_bytes=usage.used)
                seen.add((held.uid, device.name))
        finally:
            if reader is not None:
                reader.close()
        return found
