"""What to do at start with what an earlier agent left: begun claims, prepared claims, and CDI specs of nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from dra_agent.cdi.claim import ClaimSpec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.errors import AgentError
from dra_agent.prepare.ports import Entry, Ledger
from dra_agent.prepare.result import RecoveryReport

log = logging.getLogger(__name__)


def recover(
    ledger: Ledger,
    specs: SpecDirectory,
    undo: Callable[[Entry], None],
    rebuild: Callable[[Entry], tuple[ClaimSpec, bool]],
    metadata: MetadataDirectory | None = None,
    foreign: Collection[str] = (),
) -> RecoveryReport:
    """Undo begun claims, check prepared ones and remove specs of claims that hold nothing; one claim at a time.

    Specs of `foreign` claims, which another agent of this host prepared, are left alone. A claim
    that cannot be mended keeps its devices and is reported. The kubelet asks again for what was undone.
    """

    def mend(entry: Entry) -> bool | None:
        if entry.state == "started":
            undo(entry)
            return None
        return rebuild(entry)[1]

    entries = ledger.entries()
    report = look(entries, mend)
    known = {entry.uid for entry in entries}
    removed: list[str] = []
    problems = list(report.problems)
    try:
        others = known.union(foreign)
        removed.extend(uid for uid in specs.claims() if uid not in others and specs.delete(uid))
        specs.remove_leftovers()
        if metadata is not None:
            metadata.keep_only(known)
    except AgentError as error:
        problems.append(str(error))
    report = msgspec.structs.replace(report, removed=tuple(removed), problems=tuple(problems))
    log.info(
        "claims of an earlier run looked at",
        extra={name: len(getattr(report, name)) for name in report.__struct_fields__},
    )
    return report


def look(entries: Iterable[Entry], mend: Callable[[Entry], bool | None]) -> RecoveryReport:
    """Mend claim after claim: `mend` answers whether it had to be written again, None where it holds nothing now."""
    kept: list[str] = []
    rebuilt: list[str] = []
    rolled_back: list[str] = []
    problems: list[str] = []
    for entry in entries:
        try:
            mended = mend(entry)
        except AgentError as error:
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): {error}")
            log.warning("claim not mended", extra={"claim": entry.uid, "problem": str(error)})
        except Exception as error:  # one claim's bug must not keep the agent from its work
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): unexpected {error!r}")
            log.exception("claim not mended", extra={"claim": entry.uid})
        else:
            {True: rebuilt, False: kept, None: rolled_back}[mended].append(entry.uid)
            if mended:
                log.warning("CDI spec was missing or changed, and was written again", extra={"claim": entry.uid})
    return RecoveryReport(tuple(kept), tuple(rebuilt), tuple(rolled_back), (), tuple(problems))
