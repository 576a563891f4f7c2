"""Events for devices that fail, recover, or leave the host while a claim holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from dra_agent.inventory.model import Inventory, pool_name
from dra_agent.status.device_status import Condition, Judge, PreparedClaim, device_condition
from dra_agent.status.events import DEVICE_HEALTHY, DEVICE_LOST, DEVICE_UNHEALTHY, ObjectReference, Reason
from dra_agent.status.reporting_preparer import EventSink

Name = tuple[str, str]
"""Pool and device."""


class DeviceEventEmitter:
    """Compares what the devices are with what they were; `changed` is called on one thread."""

    def __init__(
        self,
        node: str,
        events: EventSink,
        inventory: Callable[[], Inventory],
        holders: Callable[[], Sequence[PreparedClaim]],
        *,
        judge: Judge = device_condition,
    ) -> None:
        self._node = node
        self._events = events
        self._inventory = inventory
        self._holders = holders
        self._judge = judge
        self._ill: dict[Name, Condition] = {}
        self._lost: set[tuple[str, Name]] = set()

    def changed(self) -> None:
        """Look at all devices; to be called at the start too, when what is ill is told and nothing has recovered."""
        inventory, holders = self._inventory(), self._holders()
        there = {(pool_name(self._node, device.family), device.name): device for device in inventory.devices}
        verdicts = {name: self._judge(*name, device) for name, device in there.items()}
        ill = {name: verdict for name, verdict in verdicts.items() if verdict.status == "False"}
        for name, verdict in ill.items():
            before = self._ill.get(name)
            if before is None or (before.reason, before.message) != (verdict.reason, verdict.message):
                self._tell(DEVICE_UNHEALTHY, name, f"{verdict.reason}: {verdict.message}", holders)
        for name in self._ill.keys() - ill.keys():
            if name in there:
                self._tell(DEVICE_HEALTHY, name, "has recovered", holders)
        self._ill = ill
        self._tell_of_lost(there.keys(), holders)

    def _tell(self, reason: Reason, name: Name, note: str, holders: Sequence[PreparedClaim]) -> None:
        pool, device = name
        note = f"device {device} of pool {pool}: {note}"
        self._events.record(reason, ObjectReference.node(self._node), note)
        for claim in holders:
            if any((key.pool, key.device) == name for key in claim.devices):
                self._events.record(reason, ObjectReference.claim(claim.namespace, claim.name, claim.uid), note)

    def _tell_of_lost(self, there: Set[Name], holders: Sequence[PreparedClaim]) -> None:
        lost = {
            (claim.uid, (key.pool, key.device))
            for claim in holders
            for key in claim.devices
            if (key.pool, key.device) not in there
        }
        by_uid = {claim.uid: claim for claim in holders}
        for uid, (pool, device) in sorted(lost - self._lost):
            claim = by_uid[uid]
            self._events.record(
                DEVICE_LOST,
                ObjectReference.claim(claim.namespace, claim.name, uid),
                f"device {device} of pool {pool} is not on node {self._node} any more, and the claim holds it",
            )
        self._lost = lost
