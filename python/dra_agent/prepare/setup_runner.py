"""Running the set-ups of a claim, the first time and again: what they leave in its record, and what containers get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError
from dra_agent.inventory.model import Device
from dra_agent.prepare.config import without_kind
from dra_agent.prepare.ledger_types import LedgerEntry
from dra_agent.prepare.plan import SetupStep
from dra_agent.prepare.record import ClaimRecord, DeviceRecord, SetupRecord
from dra_agent.prepare.setup import DeviceSetup, Kind, SetupDevice, SetupOutcome

Edits = Mapping[str, ContainerEdits]
"""By the key of a device."""


def run(uid: str, steps: Sequence[SetupStep], record: ClaimRecord, deadline: Deadline) -> tuple[ClaimRecord, Edits]:
    """Set up what was planned, in order; what any of them raises ends it, and has to be undone.

    RetryableError where the deadline has passed before the last is begun.
    """
    outcomes: list[SetupOutcome] = []
    for step in steps:
        deadline.check(f"claim {uid}")
        outcomes.append(step.setup.set_up(uid, step.devices, step.parameters, None, deadline))
    return _noted(record, outcomes), _merged(outcomes)


def ensure(
    entry: LedgerEntry,
    record: ClaimRecord,
    setups: Mapping[Kind, DeviceSetup],
    find: Callable[[str, str], Device],
    deadline: Deadline,
) -> tuple[ClaimRecord, Edits]:
    """Look whether the set-ups of a prepared claim stand, and mend them; the record differs where they left another.

    PermanentError for a set-up that this agent does not have; RetryableError where the deadline has passed before the
    last is begun.
    """
    devices = {item.key: item for item in record.devices}
    outcomes: list[SetupOutcome] = []
    for step in record.setups:
        deadline.check(f"claim {entry.namespace}/{entry.name} ({entry.uid})")
        setup = _setup(entry, step, setups)
        parameters = msgspec.convert(without_kind(step.parameters), setup.parameters)
        mine = [_to_set_up(devices[key], find) for key in step.devices]
        outcomes.append(setup.set_up(entry.uid, mine, parameters, step.record, deadline))
    return _noted(record, outcomes), _merged(outcomes)


def _to_set_up(item: DeviceRecord, find: Callable[[str, str], Device]) -> SetupDevice:
    device = find(item.pool, item.device)
    return SetupDevice(device, item.requests, item.share_id, item.consumed_capacity, item.admin_access)


def _noted(record: ClaimRecord, outcomes: Sequence[SetupOutcome]) -> ClaimRecord:
    done = tuple(
        msgspec.structs.replace(step, done=True, record=_plain(outcome.record))
        for step, outcome in zip(record.setups, outcomes, strict=True)
    )
    return msgspec.structs.replace(record, setups=done)


def _plain(record: Any) -> Any:
    """As the ledger gives it back, so that an unchanged record compares as such."""
    return msgspec.json.decode(msgspec.json.encode(record))


def _merged(outcomes: Sequence[SetupOutcome]) -> dict[str, ContainerEdits]:
    merged: dict[str, ContainerEdits] = {}
    for outcome in outcomes:
        for key, edits in outcome.edits.items():
            merged[key] = merged.get(key, ContainerEdits()).merged(edits)
    return merged


def _setup(entry: LedgerEntry, step: SetupRecord, setups: Mapping[Kind, DeviceSetup]) -> DeviceSetup:
    setup = setups.get((step.api_version, step.kind))
    if setup is None:
        raise PermanentError(
            f"its set-up {step.kind!r} of {step.api_version!r} is not known to this agent",
            where=f"claim {entry.namespace}/{entry.name} ({entry.uid})",
            hint="run the agent with the settings that it was prepared with",
        )
    return setup
