"""The pods of each claim, from the claims that the agent reads anyway: no pod is read, and no claim more often.

A claim is read when it is prepared, and once after each start of the agent. The kubelet does not call the agent for a
pod that joins a claim later, so such a pod is not known before the next read.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from dra_agent.api_object import is_pod
from dra_agent.claim import ClaimRef

MAX_CLAIMS = 1024
"""Claims that are kept; the oldest are dropped first. A node has at most a few hundred devices."""
MAX_PODS = 8
"""Pods of one claim, the first by name; the API permits 256 (status.reservedFor)."""


class ClaimPods:
    """Names of pods by claim. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, tuple[ClaimRef, tuple[str, ...]]] = {}
        self._uids: dict[str, frozenset[str]] = {}
        """UIDs of all pods by claim; a claim with other users than pods is missing."""

    def seen(self, claim: Mapping[str, Any]) -> None:
        """Record a claim as the API server returned it; one of another form is ignored."""
        metadata, status = claim.get("metadata"), claim.get("status")
        if not isinstance(metadata, Mapping):
            return
        identity = [metadata.get(key) for key in ("uid", "namespace", "name")]
        if not all(isinstance(part, str) and part for part in identity):
            return
        claim_ref = ClaimRef(*map(str, identity))
        users = status.get("reservedFor") if isinstance(status, Mapping) else None
        pods = {
            str(user["name"])
            for user in (users if isinstance(users, list) else ())
            if isinstance(user, Mapping) and is_pod(user) and isinstance(user.get("name"), str)
        }
        uids = _uids(users)
        with self._lock:
            self._pods.pop(claim_ref.uid, None)
            self._pods[claim_ref.uid] = claim_ref, tuple(sorted(pods)[:MAX_PODS])
            self._uids.pop(claim_ref.uid, None)
            if uids is not None:
                self._uids[claim_ref.uid] = uids
            if len(self._pods) > MAX_CLAIMS:
                oldest = next(iter(self._pods))
                del self._pods[oldest]
                self._uids.pop(oldest, None)

    def of(self, prepared: Collection[str]) -> list[tuple[ClaimRef, str]]:
        """Return each claim of these UIDs with each of its pods."""
        with self._lock:
            found = [self._pods[uid] for uid in prepared if uid in self._pods]
        return [(claim, pod) for claim, pods in found for pod in pods]

    def uids(self) -> dict[str, frozenset[str]]:
        """Return the UIDs of the pods of each claim, when it was read; claims with other users are missing."""
        with self._lock:
            return dict(self._uids)


def _uids(users: Any) -> frozenset[str] | None:
    """Return the UIDs of the pods for which a claim is reserved; None if it is reserved for anything else."""
    found = set()
    for user in users if isinstance(users, list) else ():
        if not isinstance(user, Mapping) or not is_pod(user) or not isinstance(user.get("uid"), str):
            return None
        found.add(user["uid"])
    return frozenset(found) or None
