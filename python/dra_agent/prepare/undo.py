"""Undoing what was begun or finished for a claim, down to nothing; repeatable after a crash in its midst."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import record as records
from dra_agent.prepare.config import without_kind
from dra_agent.prepare.ledger_types import LedgerEntry
from dra_agent.prepare.record import SetupRecord
from dra_agent.prepare.setup import DeviceSetup, Kind, SetupNotes

log = logging.getLogger(__name__)


def undo(
    entry: LedgerEntry,
    specs: SpecDirectory,
    setups: Mapping[Kind, DeviceSetup],
    metadata: MetadataDirectory | None,
    deadline: Deadline,
) -> None:
    """Remove a claim's spec and the files that it mounts, and undo its set-ups in reverse.

    RetryableError where any of it fails. The caller frees the devices in the ledger after that.
    """
    remove_files(entry.uid, specs, metadata)
    record = records.read(entry)
    if record is None:
        _undo_by_notes(entry, setups, deadline)
    else:
        for step in reversed(record.setups):
            _undo_step(entry, step, setups, deadline)


def remove_files(uid: str, specs: SpecDirectory, metadata: MetadataDirectory | None) -> bool:
    """Remove a claim's spec and the files that it mounts; False where there was neither."""
    known = specs.delete(uid)
    return (metadata is not None and metadata.delete(uid)) or known


def _undo_by_notes(entry: LedgerEntry, setups: Mapping[Kind, DeviceSetup], deadline: Deadline) -> None:
    """Undo what set-ups have noted themselves for a claim whose record this agent cannot read.

    What a set-up that this agent does not have did stays: RetryableError unless the record says that there is none.
    """
    for setup in reversed(list(setups.values())):
        if isinstance(setup, SetupNotes) and (keys := setup.noted(entry.uid)):
            setup.tear_down(entry.uid, keys, None, deadline)
            log.warning("set-up undone by its own notes", extra={"claim": entry.uid, "kind": setup.kind[1]})
    unknown = records.unknown_setups(entry, setups)
    if unknown is None or unknown:
        what = "what was set up for it is not known" if unknown is None else f"{', '.join(unknown)} was set up for it"
        raise RetryableError(
            f"its record cannot be read, and {what}, so its devices stay held",
            where=f"claim {entry.namespace}/{entry.name} ({entry.uid})",
            hint="run the newer agent that prepared it, or release it by hand once its devices are as they should be",
        )
    log.error("released a claim whose record cannot be read", extra={"claim": entry.uid})


def _undo_step(entry: LedgerEntry, step: SetupRecord, setups: Mapping[Kind, DeviceSetup], deadline: Deadline) -> None:
    where = f"claim {entry.namespace}/{entry.name} ({entry.uid})"
    setup = setups.get((step.api_version, step.kind))
    if setup is None:
        raise RetryableError(
            f"its set-up {step.kind!r} of {step.api_version!r} is not known to this agent, so it cannot be undone",
            where=where,
            hint="run the agent with the settings that it was prepared with",
        )
    if step.done:
        setup.tear_down(entry.uid, step.devices, step.record, deadline)
        return
    try:
        parameters = msgspec.convert(without_kind(step.parameters), setup.parameters)
    except msgspec.ValidationError as error:
        raise RetryableError(f"its set-up cannot be undone: {error}", where=where, hint="report this") from error
    setup.roll_back(entry.uid, step.devices, parameters, deadline)
