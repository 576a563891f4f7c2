"""The claims of pods that the scheduler has nominated for this node and not bound yet.

A claim has no field that a watch could select by node. A pod has: `status.nominatedNodeName`, which the scheduler sets
before it waits for binding conditions (since Kubernetes 1.35).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from dra_agent.errors import AgentError, PermanentError
from dra_agent.kube_client.client import ApiClient, ObjectList, WatchEvent
from dra_agent.kube_client.errors import ForbiddenError
from dra_agent.kube_client.kinds import PODS
from dra_agent.kube_client.reflector import Reflector
from dra_agent.retry import Backoff

MAX_PAUSE_S = 10.0
"""Maximum seconds between two tries: a pod waits."""
GRANT = "grant list and watch on pods: bindingConditions of the chart"


class ClaimName(NamedTuple):
    """A claim, by name: of its uid and devices nothing is known."""

    namespace: str
    name: str


class _Reference(msgspec.Struct, rename="camel"):
    resource_claim_name: str | None = None


class _Metadata(msgspec.Struct):
    uid: str
    namespace: str = "default"


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    resource_claims: list[_Reference] | None = None


class _Status(msgspec.Struct, rename="camel"):
    nominated_node_name: str | None = None
    resource_claim_statuses: list[_Reference] | None = None
    extended_resource_claim_status: _Reference | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class NominatedPods(Reflector):
    """Follows the nominated pods while `run` runs. Keeps names only."""

    def __init__(
        self, api: ApiClient, node: str, changed: Callable[[], None], *, backoff: Backoff | None = None
    ) -> None:
        """`changed` is called after each change of the claims or of `is_permitted`, and must not block."""
        super().__init__(
            api,
            PODS,
            # The API server has an index of the first field: it sends no changes of bound pods.
            {"spec.nodeName": "", "status.nominatedNodeName": node},
            subject="nominated pods",
            backoff=backoff or Backoff.for_lists(longest=MAX_PAUSE_S),
        )
        self._node = node
        self._changed = changed
        self._claims: dict[str, tuple[ClaimName, ...]] = {}
        """By uid of the pod."""
        self.is_permitted = False
        """Whether the pods can be followed: a list has succeeded, and the server has not refused one since."""
        self.is_known = asyncio.Event()
        """Set when `is_permitted` has its first result."""

    def claims(self) -> frozenset[ClaimName]:
        """Return the claims of all nominated pods."""
        return frozenset(name for names in self._claims.values() for name in names)

    def store_list(self, found: ObjectList) -> None:
        """Replace the pods."""
        self._claims = {}
        self.is_permitted = True
        self.is_known.set()
        for item in found.items:
            self._store(item)
        self._changed()

    def store_event(self, event: WatchEvent) -> None:
        """Replace a pod, or remove it."""
        if event.type == "DELETED":
            self._claims.pop(str((event.object.get("metadata") or {}).get("uid")), None)
        else:
            self._store(event.object)
        self._changed()

    def failed(self, error: AgentError) -> None:
        """Record that the permission is missing."""
        if isinstance(error, PermanentError):
            self.is_known.set()
        if isinstance(error, ForbiddenError) and self.is_permitted:
            self.is_permitted = False
            self._changed()

    def recovered(self) -> None:
        """Record that the pods are followed again."""
        if not self.is_permitted:
            self.is_permitted = True
            self._changed()

    def explain(self, error: AgentError) -> AgentError:
        """Return an error that names the permission."""
        if not isinstance(error, ForbiddenError):
            return error
        return ForbiddenError(error.message, where=error.where, hint=GRANT)

    def _store(self, found: dict[str, Any]) -> None:
        try:
            pod = msgspec.convert(found, _Pod)
        except msgspec.ValidationError:
            return
        if pod.spec.node_name or pod.status.nominated_node_name != self._node:
            self._claims.pop(pod.metadata.uid, None)
            return
        namespace = pod.metadata.namespace
        self._claims[pod.metadata.uid] = tuple(ClaimName(namespace, name) for name in _claim_names(pod))


def _claim_names(pod: _Pod) -> Iterator[str]:
    extended = pod.status.extended_resource_claim_status
    references = [*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ())]
    for reference in [*references, extended] if extended is not None else references:
        if reference.resource_claim_name:
            yield reference.resource_claim_name
