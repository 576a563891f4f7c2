"""Names of objects as users write them: `train`, `team-a/train`, `claim/train`, `rc/train`, `pod/job`, or a uid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dra_agent.errors import UsageError

CLAIM = "claim"
CLASS = "class"
POD = "pod"
TEMPLATE = "template"
NODE = "node"
DEVICE = "device"
WORKLOADS = {
    "deployment": "Deployment",
    "replicaset": "ReplicaSet",
    "statefulset": "StatefulSet",
    "job": "Job",
    "jobset": "JobSet",
    "podgroup": "PodGroup",
    "compositepodgroup": "CompositePodGroup",
    "workload": "Workload",
}
"""Objects with several pods, and their kinds in the API. Elsewhere these words may be namespaces."""
_SPELLINGS = {
    CLAIM: ("claim", "claims", "rc", "resourceclaim", "resourceclaims"),
    CLASS: ("class", "classes", "dc", "deviceclass", "deviceclasses"),
    POD: ("pod", "pods", "po"),
    TEMPLATE: ("template", "templates", "resourceclaimtemplate", "resourceclaimtemplates"),
    NODE: ("node", "nodes", "no"),
    DEVICE: ("device", "devices", "dev"),
    "deployment": ("deployment", "deployments", "deploy"),
    "replicaset": ("replicaset", "replicasets", "rs"),
    "statefulset": ("statefulset", "statefulsets", "sts"),
    "job": ("job", "jobs"),
    "jobset": ("jobset", "jobsets"),
    "podgroup": ("podgroup", "podgroups"),
    "compositepodgroup": ("compositepodgroup", "compositepodgroups"),
    "workload": ("workload", "workloads", "wl"),
}
_KINDS = {spelling: kind for kind, spellings in _SPELLINGS.items() for spelling in spellings}
_GROUPS = ("resource.k8s.io", "apps", "batch", "jobset.x-k8s.io", "scheduling.k8s.io", "kueue.x-k8s.io")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ObjectName(NamedTuple):
    """The object that one argument names."""

    kind: str
    namespace: str | None
    """None: the argument has no namespace."""
    name: str

    @property
    def is_uid(self) -> bool:
        """True if it has the form of a uid."""
        return self.namespace is None and _UID.fullmatch(self.name) is not None


def kind_of(word: str, kinds: Sequence[str]) -> str | None:
    """Return the kind that an argument names, with or without its API group; None if it is not a kind.

    Objects with several pods are kinds only where one of them is possible.
    """
    name, _, group = word.lower().partition(".")
    kind = _KINDS.get(name) if not group or group in _GROUPS else None
    return kind if kind not in WORKLOADS or WORKLOADS.keys() & set(kinds) else None


def parse(word: str, *, kinds: Sequence[str]) -> ObjectName:
    """Read `NAME`, `NAMESPACE/NAME`, `KIND/NAME` or `KIND/NAMESPACE/NAME`; `kinds` are possible, the first by default.

    Raises:
        UsageError: It has another form, or is of another kind.
    """
    parts = word.split("/")
    kind = kind_of(parts[0], kinds) if len(parts) > 1 else None
    if kind is not None:
        parts = parts[1:]
    if not all(parts) or len(parts) > 2:
        raise UsageError("is not a name", where=word or "''", hint=f"write NAME, NAMESPACE/NAME or {kinds[0]}/NAME")
    if kind is not None and kind not in kinds:
        raise UsageError(f"is a {kind}", where=word, hint=f"name a {' or a '.join(kinds)}")
    return ObjectName(kind or kinds[0], parts[0] if len(parts) == 2 else None, parts[-1])


def parse_pair(words: Sequence[str], *, kinds: Sequence[str]) -> ObjectName:
    """Read `KIND NAME` or one argument as `parse` does; raises UsageError for anything else."""
    if len(words) == 2 and (kind := kind_of(words[0], kinds)) is not None:
        if kind not in kinds:
            raise UsageError(f"is a {kind}", where=" ".join(words), hint=f"name a {' or a '.join(kinds)}")
        return parse(words[1], kinds=[kind])
    if len(words) != 1:
        raise UsageError("names more than one object", where=" ".join(words), hint=f"write {kinds[0]}/NAME")
    if (kind := kind_of(words[0], kinds)) in kinds and kind not in WORKLOADS:
        raise UsageError(f"which {kind}?", hint=f"write {words[0]}/NAME")
    return parse(words[0], kinds=kinds)
