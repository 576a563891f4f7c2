"""What to do at start with what an earlier agent left: begun claims, prepared claims, and CDI specs of nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_agent.cdi.claim import ClaimSpec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.errors import AgentError
from dra_agent.prepare.ports import Entry, Ledger
from dra_agent.prepare.result import RecoveryReport

log = logging.getLogger(__name__)


def recover(
    ledger: Ledger,
    specs: SpecDirectory,
    undo: Callable[[Entry], None],
    rebuild: Callable[[Entry], tuple[ClaimSpec, bool]],
) -> RecoveryReport:
    """Undo begun claims, check prepared ones and remove specs of claims that hold nothing; one claim at a time.

    A claim that cannot be mended keeps its devices and is reported. The kubelet asks again for what was undone.
    """
    kept: list[str] = []
    rebuilt: list[str] = []
    rolled_back: list[str] = []
    removed: list[str] = []
    problems: list[str] = []
    entries = ledger.entries()
    for entry in entries:
        try:
            if entry.state == "started":
                undo(entry)
                rolled_back.append(entry.uid)
            else:
                _, mended = rebuild(entry)
                (rebuilt if mended else kept).append(entry.uid)
        except AgentError as error:
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): {error}")
        except Exception as error:  # one claim's bug must not keep the agent from starting
            log.exception("claim not recovered", extra={"claim": entry.uid})
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): unexpected {error!r}")
    known = {entry.uid for entry in entries}
    try:
        removed.extend(uid for uid in specs.claims() if uid not in known and specs.delete(uid))
        specs.remove_leftovers()
    except AgentError as error:
        problems.append(str(error))
    report = RecoveryReport(tuple(kept), tuple(rebuilt), tuple(rolled_back), tuple(removed), tuple(problems))
    log.info(
        "claims of an earlier run looked at",
        extra={name: len(getattr(report, name)) for name in report.__struct_fields__},
    )
    for problem in problems:
        log.warning("claim not mended", extra={"problem": problem})
    return report
