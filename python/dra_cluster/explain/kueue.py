"""The Workloads in which Kueue records what it decides about pods: which ones concern an object, and their quotes.

Sources: kubernetes-sigs/kueue v0.19.2, pkg/controller/constants, pkg/controller/jobs/pod/constants and
apis/kueue/v1beta2 (WorkloadAnnotation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_agent.explain.printed_object import first_misfit
from dra_agent.kube_client import ApiClient, ForbiddenError, InvalidObjectError, Kind, NotFoundError
from dra_cluster.explain.quote import is_true, no_quote, quote
from dra_cluster.explain.workloads import JOB_SET, JOB_SET_NAME, KUEUE_GROUP_NAME, WORKLOAD

NOT_EVALUATED = "Kueue's quota, flavors and topology"
MAX_WORKLOADS = 5000
"""Workloads of a namespace that are read from an API server."""
MAX_QUOTES = 5
"""Workloads of one object that are quoted: each pod of a Deployment has its own."""
VERSIONS = tuple(
    Kind("kueue.x-k8s.io", version, "workloads", WORKLOAD, namespaced=True) for version in ("v1beta2", "v1beta1")
)
_QUEUE_NAME, _MANAGED = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed"
_PREBUILT, _OF_POD = "kueue.x-k8s.io/prebuilt-workload-name", "kueue.x-k8s.io/workload"
_SCHEDULING_GATE = "kueue.x-k8s.io/admission"


@dataclass
class Workloads:
    """The Workloads of a namespace."""

    listed: Sequence[Object] = ()
    unknown: str = "Workloads of Kueue were not read"
    """Why they are not known, or not all of them; empty if all are known."""


async def read_workloads(api: ApiClient, namespace: str) -> Workloads:
    """Read the Workloads; raises RetryableError if the server does not respond."""
    for kind in VERSIONS:
        try:
            found = await api.list(kind, namespace=namespace, max_items=MAX_WORKLOADS)
        except NotFoundError:
            continue  # This version of the kind.
        except (ForbiddenError, InvalidObjectError) as error:
            return Workloads(unknown=f"cannot list workloads of Kueue in namespace {namespace}: {error.message}")
        readable, unreadable = [], [*found.notes]
        for one in found.items:
            if misfit := first_misfit(WORKLOAD, one):
                unreadable.append(f"a {WORKLOAD} of Kueue cannot be read: {misfit[0]} is not {misfit[1]}")
            else:
                readable.append(one)
        return Workloads(readable, unreadable[0] if unreadable else "")
    return Workloads(unknown="the API server has no workloads of Kueue")


def quotes_of(workloads: Workloads, kind: str, value: Object | None, pods: Sequence[Object]) -> list[Object]:
    """Return the quotes of the Workloads of an object and its pods; empty if Kueue does not manage it.

    Arguments:
        workloads: Those of the namespace.
        kind: The kind of the object.
        value: The object; None for several pods.
        pods: Its pods, those that exist and templates of others.
    """
    if kind == WORKLOAD and value is not None:
        return [quote(WORKLOAD, value, "Kueue", not_evaluated=NOT_EVALUATED)]
    owners = list(_owners(kind, value, pods))
    names = set(_names(value, pods))
    found = [
        one
        for one in workloads.listed
        if one["metadata"]["name"] in names
        or any(owner.is_named_by(reference) for reference in _references(one) for owner in owners)
    ]
    quotes = [quote(WORKLOAD, one, "Kueue", not_evaluated=NOT_EVALUATED) for one in found[:MAX_QUOTES]]
    if len(found) > MAX_QUOTES:
        more = f"{len(found) - MAX_QUOTES} more Workloads of its pods are not quoted"
        quotes.append(no_quote(WORKLOAD, None, more, not_evaluated=NOT_EVALUATED))
    if not found and is_managed(value, pods):
        missing = workloads.unknown or "Kueue has not created a Workload for it yet"
        quotes.append(no_quote(WORKLOAD, None, missing, not_evaluated=NOT_EVALUATED))
    return quotes


def is_managed(value: Object | None, pods: Iterable[Object]) -> bool:
    """Return whether an object or one of its pods is marked as one that Kueue admits."""
    for one in (value or {}, *pods):
        labels = (one.get("metadata") or {}).get("labels") or {}
        gates = (one.get("spec") or {}).get("schedulingGates") or ()
        if _QUEUE_NAME in labels or labels.get(_MANAGED) == "true":
            return True
        if any(gate.get("name") == _SCHEDULING_GATE for gate in gates):
            return True
    return False


def waits(quotes: Iterable[Object]) -> str | None:
    """Return that Kueue has not admitted a Workload; None if all are admitted or have ended, or none is known."""
    known = [one for one in quotes if one["kind"] == WORKLOAD and one["name"]]
    waiting = [one for one in known if not is_true(one, "Admitted") and not is_true(one, "Finished")]
    if not waiting:
        return None
    return "is not admitted by Kueue" if len(known) == 1 else "is not admitted by Kueue as a whole"


@dataclass(frozen=True)
class _Owner:
    kind: str
    name: str
    uid: str = field(default="")

    def is_named_by(self, reference: Object) -> bool:
        if (reference.get("kind"), reference.get("name")) != (self.kind, self.name):
            return False
        # An object of a file may have no uid.
        return not self.uid or not reference.get("uid") or reference["uid"] == self.uid


def _owners(kind: str, value: Object | None, pods: Iterable[Object]) -> Iterator[_Owner]:
    """Yield the objects for one of which Kueue may have created the Workload."""
    for own_kind, one in [(kind, value), *(("Pod", pod) for pod in pods)]:
        metadata = (one or {}).get("metadata") or {}
        if metadata.get("name"):
            yield _Owner(own_kind, str(metadata["name"]), str(metadata.get("uid") or ""))
        for reference in _references(one or {}):
            yield _Owner(*(str(reference.get(key) or "") for key in ("kind", "name", "uid")))
        if job_set := (metadata.get("labels") or {}).get(JOB_SET_NAME):
            yield _Owner(JOB_SET, str(job_set))


def _names(value: Object | None, pods: Iterable[Object]) -> Iterator[str]:
    """Yield the names of Workloads that an object and its pods have."""
    for one in (value or {}, *pods):
        metadata = one.get("metadata") or {}
        for fields in (metadata.get("labels") or {}, metadata.get("annotations") or {}):
            yield from (str(fields[key]) for key in (_PREBUILT, _OF_POD, KUEUE_GROUP_NAME) if fields.get(key))


def _references(value: Object) -> Sequence[Object]:
    references: Sequence[Object] = (value.get("metadata") or {}).get("ownerReferences") or ()
    return references
