"""In-memory collaborators of a drain: a ledger, and an API server with claims and pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.errors import AgentError
from dra_agent.kube_client import NotFoundError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.kinds import Kind
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.reclaim.claim_pods import PodClient
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState


class MemoryLedger(JournalLedger):
    """A ledger without files."""

    def __init__(self, held: Iterable[LedgerEntry] = ()) -> None:
        self.held = list(held)
        self._watchers: list[Callable[[], None]] = []

    def entries(self) -> list[LedgerEntry]:
        return list(self.held)

    def add(self, entry: LedgerEntry) -> None:
        self.held.append(entry)
        self._notify()

    def remove(self, *entries: LedgerEntry) -> None:
        self.held = [entry for entry in self.held if entry not in entries]
        self._notify()


class FixedReclaim(ReclaimService):
    """A reclaim whose state does not change."""

    def __init__(self, state: ReclaimState) -> None:
        self.state = state


def entry(uid: str, name: str = "c") -> LedgerEntry:
    return LedgerEntry(uid, "ns", name, ())


class ClaimsApi(ApiClient):
    """Returns claims by name; `errors` are raised first, and `reads` counts the requests."""

    def __init__(self, claims: dict[str, dict[str, Any]] | None = None, errors: Sequence[AgentError] = ()) -> None:
        self.claims = claims or {}
        self.errors = list(errors)
        self.reads = 0

    async def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        if name not in self.claims:
            raise NotFoundError("gone")
        return self.claims[name]


@dataclass
class FakePods(PodClient):
    """The pods of an API server; `errors` are raised first, and `done` has the accepted requests.

    `reads` counts the pods that were read.
    """

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[AgentError] = field(default_factory=list)
    done: list[tuple[str, str, int | None]] = field(default_factory=list)
    reads: int = 0

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        self.reads += 1
        if name not in self.pods:
            raise NotFoundError(f"no pod {name}")
        return self.pods[name]

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.done.append(("evict", name, grace))

    async def delete(self, namespace: str, name: str, uid: str, grace: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.done.append(("delete", name, grace))
