"""Undoing what was begun or finished for a claim, down to nothing; repeatable after a crash in its midst."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.errors import RetryableError
from dra_agent.prepare import record as records
from dra_agent.prepare.config import without_kind
from dra_agent.prepare.ports import Entry, Ledger
from dra_agent.prepare.record import SetupRecord
from dra_agent.prepare.setup import Kind, VendorSetup


def undo(
    entry: Entry,
    ledger: Ledger,
    specs: SpecDirectory,
    setups: Mapping[Kind, VendorSetup],
    metadata: MetadataDirectory | None = None,
) -> None:
    """Remove a claim's spec and the files that it mounts, undo its set-ups in reverse, and free its devices last.

    Until then nobody gets them. RetryableError where any of it fails; the claim then still holds its devices.
    """
    specs.delete(entry.uid)
    if metadata is not None:
        metadata.delete(entry.uid)
    record = records.read(entry)
    for step in reversed(record.setups if record is not None else ()):
        _undo_step(entry, step, setups)
    ledger.release(entry.uid)


def _undo_step(entry: Entry, step: SetupRecord, setups: Mapping[Kind, VendorSetup]) -> None:
    where = f"claim {entry.namespace}/{entry.name} ({entry.uid})"
    setup = setups.get((step.api_version, step.kind))
    if setup is None:
        raise RetryableError(
            f"its set-up {step.kind!r} of {step.api_version!r} is not known to this agent, so it cannot be undone",
            where=where,
            todo="run the agent with the settings that it was prepared with",
        )
    if step.done:
        setup.tear_down(entry.uid, step.devices, step.record)
        return
    try:
        parameters = msgspec.convert(without_kind(step.parameters), setup.parameters)
    except msgspec.ValidationError as error:
        raise RetryableError(f"its set-up cannot be undone: {error}", where=where, todo="report this") from error
    setup.roll_back(entry.uid, step.devices, parameters)
