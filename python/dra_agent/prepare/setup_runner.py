"""Runs the set-ups of a claim, repeats them, and undoes them, also after a crash in the middle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare import record as records
from dra_agent.prepare.config import without_kind
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.plan import SetupStep
from dra_agent.prepare.record import ClaimRecord, SetupRecord
from dra_agent.prepare.setup import DeviceSetup, Kind, SetupDevice, SetupNotes, SetupOutcome

log = logging.getLogger(__name__)

Edits = Mapping[str, ContainerEdits]
"""By device key."""
_UNKNOWN_KIND_HINT = "run the agent with the settings that it was prepared with"


def run(uid: str, steps: Sequence[SetupStep], record: ClaimRecord, deadline: Deadline) -> tuple[ClaimRecord, Edits]:
    """Run the planned set-ups in order; returns the updated record and the edits.

    An error of a set-up is passed on, and the caller undoes the claim.

    Raises:
        RetryableError: The deadline passed before the last set-up started.
    """
    outcomes: list[SetupOutcome] = []
    for step in steps:
        deadline.check(f"claim {uid}")
        outcomes.append(step.setup.set_up(uid, step.devices, step.parameters, None, deadline))
    return _with_outcomes(record, outcomes), _merged(outcomes)


def ensure(
    entry: LedgerEntry,
    record: ClaimRecord,
    setups: Mapping[Kind, DeviceSetup],
    find: Callable[[str, str], Device],
    deadline: Deadline,
) -> tuple[ClaimRecord, Edits]:
    """Check and repair the set-ups of a prepared claim; returns the record, which may have changed, and the edits.

    Raises:
        PermanentError: This agent does not have a kind of set-up.
        RetryableError: The deadline passed before the last set-up started.
    """
    devices = {item.key: item for item in record.devices}
    outcomes: list[SetupOutcome] = []
    for step in record.setups:
        deadline.check(entry.with_uid)
        if (setup := _setup_of(step, setups)) is None:
            raise PermanentError(_unknown_kind(step), where=entry.with_uid, hint=_UNKNOWN_KIND_HINT)
        parameters = msgspec.convert(without_kind(step.parameters), setup.parameters)
        own_devices = [SetupDevice(devices[key], find(devices[key].pool, devices[key].device)) for key in step.devices]
        outcomes.append(setup.set_up(entry.uid, own_devices, parameters, step.record, deadline))
    return _with_outcomes(record, outcomes), _merged(outcomes)


def _with_outcomes(record: ClaimRecord, outcomes: Sequence[SetupOutcome]) -> ClaimRecord:
    done = tuple(
        msgspec.structs.replace(step, done=True, record=_as_stored(outcome.record))
        for step, outcome in zip(record.setups, outcomes, strict=True)
    )
    return msgspec.structs.replace(record, setups=done)


def _as_stored(record: Any) -> Any:
    """Return the record as decoded from the ledger, so that an unchanged one compares equal."""
    return msgspec.json.decode(msgspec.json.encode(record))  # noqa: TID251 - encoded in the same line


def _merged(outcomes: Sequence[SetupOutcome]) -> dict[str, ContainerEdits]:
    merged: dict[str, ContainerEdits] = {}
    for outcome in outcomes:
        for key, edits in outcome.edits.items():
            merged[key] = merged.get(key, ContainerEdits()).merged(edits)
    return merged


def _setup_of(step: SetupRecord, setups: Mapping[Kind, DeviceSetup]) -> DeviceSetup | None:
    return setups.get((step.api_version, step.kind))


def _unknown_kind(step: SetupRecord) -> str:
    return f"its set-up {step.kind!r} of {step.api_version!r} is not known to this agent"


def undo(entry: LedgerEntry, setups: Mapping[Kind, DeviceSetup], deadline: Deadline) -> None:
    """Undo the set-ups of a claim in reverse order.

    The caller has removed the claim's files, and then releases it in the ledger. Raises RetryableError if a step fails.
    """
    record = records.read(entry)
    if record is None:
        _undo_by_notes(entry, setups, deadline)
    else:
        for step in reversed(record.setups):
            _undo_step(entry, step, setups, deadline)


def _undo_by_notes(entry: LedgerEntry, setups: Mapping[Kind, DeviceSetup], deadline: Deadline) -> None:
    """Undo the set-ups of a claim with an unreadable record, from their own state files.

    Raises RetryableError if the claim may have set-ups of a kind that this agent does not have: they would remain.
    """
    for setup in reversed(list(setups.values())):
        if isinstance(setup, SetupNotes) and (keys := setup.noted(entry.uid)):
            setup.tear_down(entry.uid, keys, None, deadline)
            log.warning("set-up undone from its own state files", extra={"claim": entry.uid, "kind": setup.kind[1]})
    unknown = records.unknown_setups(entry, setups)
    if unknown is None or unknown:
        reason = (
            "the set-ups of the claim are not known" if unknown is None else f"{', '.join(unknown)} was set up for it"
        )
        raise RetryableError(
            f"its record cannot be read, and {reason}, so its devices stay held",
            where=entry.with_uid,
            hint="run the newer agent that prepared it, or release it by hand after you have restored its devices",
        )
    log.error("released a claim whose record cannot be read", extra={"claim": entry.uid})


def _undo_step(entry: LedgerEntry, step: SetupRecord, setups: Mapping[Kind, DeviceSetup], deadline: Deadline) -> None:
    where = entry.with_uid
    if (setup := _setup_of(step, setups)) is None:
        raise RetryableError(f"{_unknown_kind(step)}, so it cannot be undone", where=where, hint=_UNKNOWN_KIND_HINT)
    if step.done:
        setup.tear_down(entry.uid, step.devices, step.record, deadline)
        return
    try:
        parameters = msgspec.convert(without_kind(step.parameters), setup.parameters)
    except msgspec.ValidationError as error:
        raise RetryableError(f"its set-up cannot be undone: {error}", where=where, hint="report this") from error
    setup.roll_back(entry.uid, step.devices, parameters, deadline)
