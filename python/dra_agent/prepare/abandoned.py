"""Claims that were begun by a process that is dead: whoever wants their devices undoes them first.

Whoever works at a claim has the locks of all its devices. A begun claim whose locks are free is in nobody's work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError
from dra_agent.inventory.model import device_key
from dra_agent.prepare.allocation import AllocatedDevice
from dra_agent.prepare.ledger_types import HeldDevice, Ledger, LedgerEntry
from dra_agent.prepare.locks import KeyedLocks, LockedError

log = logging.getLogger(__name__)


def lock_names(devices: Iterable[AllocatedDevice | HeldDevice]) -> set[str]:
    """Name the locks of a claim's devices: those that it was allocated, not the whole that a partition is a part of."""
    return {f"{item.pool}/{item.device}" for item in devices if isinstance(item, AllocatedDevice) or item.request}


def undo_abandoned(
    wanted: LedgerEntry,
    ledger: Ledger,
    claims: KeyedLocks,
    devices: KeyedLocks,
    undo: Callable[[LedgerEntry], None],
    deadline: Deadline,
) -> bool:
    """Undo abandoned claims that are in the way of another, whose devices' locks the caller has; True if any was.

    Further locks are tried and not waited for: they come out of order here.
    """
    mine, at_once = lock_names(wanted.devices), Deadline.of(0)
    with ledger.turn(deadline):
        entries = ledger.entries()
    undone = False
    for other in entries:
        if other.state != "started" or other.uid == wanted.uid or not _overlap(other, wanted):
            continue
        purpose = f"undoing claim {other.uid}"
        try:
            with (
                claims.hold([other.uid], at_once, purpose),
                devices.hold(lock_names(other.devices) - mine, at_once, purpose),
            ):
                with ledger.turn(deadline):
                    now = ledger.get(other.uid)
                if now is not None and now.state == "started":
                    undo(now)
                undone = True
        except LockedError:
            continue
        except AgentError as error:
            log.warning("abandoned claim not undone", extra={"claim": other.uid, "reason": str(error)})
    return undone


def _overlap(one: LedgerEntry, other: LedgerEntry) -> bool:
    devices = {device_key(item.pool, item.device) for item in other.devices}
    return any(device_key(item.pool, item.device) in devices for item in one.devices)
