"""Decides about one pod that the taint does not evict in time. A pure function of objects and times.

Never touched: pods of other nodes, of DaemonSets, mirror pods, pods that opted out, pods that have ended. Never with
a grace period of zero: the API server would remove the pod while its containers still use the devices
(kubernetes/kubernetes#120671).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from dra_agent.api_object import results_of
from dra_agent.clock import STEADY
from dra_agent.inventory.model import is_pool_of
from dra_agent.reclaim.announcements import TAINT_NAME

EvictionMode = Literal["taint", "auto", "evict", "delete"]
"""taint: leave everything to Kubernetes.

evict: the Eviction API, which respects PodDisruptionBudgets. delete: delete pods that cannot be evicted at once.
auto: evict, and delete with the remaining grace period when the deadline is near.
"""

TAINT_EVICTION_DELAY = timedelta(seconds=2)
"""Time for the taint to have a pod deleted; kube-controller-manager takes less."""
UNPREPARE_MARGIN = timedelta(seconds=2)
"""Before the deadline, in which the kubelet unprepares the claim."""
DELETE_MARGIN = timedelta(seconds=5)
"""In addition to a pod's grace period: how long before the deadline deletion replaces eviction."""
PLANNED_REQUESTS_PER_S = 40.0
"""Requests of evictions per second by which is planned: most of what the agent sends (kube_client.request_rate)."""
REQUESTS_OF_A_POD = 3
"""A read, an eviction that is refused, and the deletion."""
TOLERATION_MARGIN = timedelta(seconds=2)
"""Before the end of a toleration: how long before the taint's eviction a pod is evicted if its grace period is
longer than the remaining time. The kubelet does not shorten one that has started."""
KEEP = "keep"
"""Value of the annotation `<driver>/reclaim` with which a pod stays until the node is terminated."""
_DEFAULT_GRACE_S = 30
_MAX_S = 10 * 365 * 86_400
"""Seconds after which no node has a deadline. The API permits 64 bits, which are beyond the calendar."""
_MIRROR = "kubernetes.io/config.mirror"


class Decision(msgspec.Struct, frozen=True):
    """The next action: leave (permanently), wait (and check again), evict, or delete with `grace` seconds."""

    act: Literal["leave", "wait", "evict", "delete"]
    why: str
    grace: int | None = None
    until: datetime | None = None
    """When a pod that waits is to be checked again; None if only a change of the pod matters."""
    evict_first: bool = False
    """Whether a deletion is first tried as an eviction with that grace, for the DisruptionTarget condition."""


class EvictionContext(msgspec.Struct, frozen=True):
    """When it is decided, for which notice, on which node."""

    now: datetime
    noticed: datetime
    deadline: datetime | None
    node: str
    driver: str
    mode: EvictionMode
    pods: int = 1
    """How many pods of the node may have to be deleted: their requests take time."""
    held: int = 1
    """How many pods are checked, also those that are being deleted."""

    @property
    def remaining(self) -> timedelta | None:
        """Seconds until the kubelet must have released the claim; None without a deadline."""
        return None if self.deadline is None else self.deadline - UNPREPARE_MARGIN - self.now

    @property
    def lead(self) -> timedelta:
        """How long the requests for all pods take; the last pod needs its grace period after them."""
        return timedelta(seconds=self.pods * REQUESTS_OF_A_POD / PLANNED_REQUESTS_PER_S)

    def until_deletion(self, grace_s: float) -> timedelta | None:
        """Return the time until deletion replaces the eviction of a pod; None without a deadline."""
        if self.remaining is None:
            return None
        return self.remaining - timedelta(seconds=grace_s) - DELETE_MARGIN - self.lead

    @property
    def may_try_eviction(self) -> bool:
        """Whether there is time to try an eviction before each deletion."""
        return self.remaining is None or self.lead <= self.remaining


def decide(pod: Mapping[str, Any], claim: Mapping[str, Any], context: EvictionContext) -> Decision:
    """Decide about a pod for which a claim of this node is reserved."""
    if why := _untouchable(pod, context):
        return Decision("leave", why)
    if context.mode == "taint":
        return Decision("leave", "eviction is not configured (reclaim.evict is taint)")
    if pod["metadata"].get("deletionTimestamp"):
        return _being_deleted(pod, context)
    tolerated_until = _tolerated_until(claim, context)
    if tolerated_until is None:
        return Decision("leave", "its claim tolerates the taint")
    # A pod that Kubernetes overlooks (kubernetes/kubernetes#141290) need not be waited for.
    overlooked = bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))
    delay = timedelta() if overlooked else TAINT_EVICTION_DELAY
    if _exceeds_deadline(pod, context):
        # The taint would delete it with its whole grace period: it needs an eviction with a shorter one before.
        delay = -TOLERATION_MARGIN
    if context.now < tolerated_until + delay:
        return Decision("wait", "the taint may still move it", until=tolerated_until + delay)
    return _move(pod, context)


def next_check(decision: Decision, pod: Mapping[str, Any], context: EvictionContext, least_s: float) -> float:
    """Return the seconds after which a pod is checked again, at least `least_s`.

    The checks of all pods leave half of the requests to others, and are not later than an action that becomes due.
    """
    requests = 1 if decision.act in ("wait", "leave") else REQUESTS_OF_A_POD - 1
    pause = context.held * requests / (PLANNED_REQUESTS_PER_S / 2)
    if decision.until is not None:
        pause = min(pause, (decision.until - context.now).total_seconds())
    until = context.until_deletion(_grace(pod)) if context.mode == "auto" and decision.act == "evict" else None
    if until is not None and until > timedelta():
        pause = min(pause, until.total_seconds())
    return max(least_s, pause)


def _exceeds_deadline(pod: Mapping[str, Any], context: EvictionContext) -> bool:
    return context.remaining is not None and _grace(pod) > context.remaining.total_seconds()


def _move(pod: Mapping[str, Any], context: EvictionContext) -> Decision:
    own, remaining = _grace(pod), context.remaining
    shortened = own if remaining is None else max(1, min(own, int(remaining.total_seconds())))
    late = _exceeds_deadline(pod, context)
    why = "its grace period is longer than the remaining time" if late else "the taint did not move it"
    if context.mode == "delete":
        return Decision("delete", why, shortened, evict_first=context.may_try_eviction)
    until = context.until_deletion(own)
    if context.mode == "auto" and until is not None and until <= timedelta():
        why = why if late else "the deadline is near"
        return Decision("delete", why, shortened, evict_first=context.may_try_eviction)
    return Decision("evict", why, shortened if late else None)


def _being_deleted(pod: Mapping[str, Any], context: EvictionContext) -> Decision:
    remaining = context.remaining
    if context.mode == "evict" or remaining is None:
        return Decision("wait", "it is being deleted")
    deletion_time = _time(pod["metadata"]["deletionTimestamp"])
    if deletion_time is None or deletion_time <= context.now + remaining:
        return Decision("wait", "it is being deleted")
    shortened = max(1, int(remaining.total_seconds()))
    if int(pod["metadata"].get("deletionGracePeriodSeconds") or _DEFAULT_GRACE_S) <= shortened:
        return Decision("wait", "it is being deleted")
    return Decision("delete", "its grace period is longer than the remaining time", shortened)


def _untouchable(pod: Mapping[str, Any], context: EvictionContext) -> str:
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("nodeName") != context.node:
        return "it is not on this node"
    if status.get("phase") in ("Succeeded", "Failed"):
        return "it has ended"
    annotations = metadata.get("annotations") or {}
    if _MIRROR in annotations:
        return "it is a mirror pod"
    owners = metadata.get("ownerReferences") or []
    if any(owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners):
        return "it belongs to a DaemonSet"
    if annotations.get(f"{context.driver}/{TAINT_NAME}") == KEEP:
        return f"its annotation {context.driver}/{TAINT_NAME} is {KEEP}"
    return ""


def _tolerated_until(claim: Mapping[str, Any], context: EvictionContext) -> datetime | None:
    """Return until when the claim tolerates the taint; None for as long as it is there.

    The shortest toleration of its devices counts.
    """
    ends = [
        _end(result.get("tolerations") or [], context)
        for result in results_of(claim, context.driver)
        if is_pool_of(result.get("pool"), context.node)
    ]
    if not ends:
        return context.noticed
    return min((end for end in ends if end is not None), default=None)


def _end(tolerations: list[Mapping[str, Any]], context: EvictionContext) -> datetime | None:
    """Return until when tolerations match the taint, as kube-controller-manager computes it: the shortest counts.

    Before 1.38 an empty effect does not match there, and the pod is evicted. From 1.38 on it matches, so the agent does
    not evict the pod either (claimEvictionTime, pkg/controller/devicetainteviction).
    """
    key, ends = f"{context.driver}/{TAINT_NAME}", list[datetime]()
    for toleration in tolerations:
        matches_notice = toleration.get("operator", "Equal") == "Exists" or toleration.get("value") == "notice"
        if toleration.get("effect", "") not in ("", "NoExecute") or toleration.get("key", "") not in ("", key):
            continue
        if not matches_notice:
            continue
        seconds = toleration.get("tolerationSeconds")
        if seconds is None:
            return None
        ends.append(context.noticed + timedelta(seconds=min(max(0, int(seconds)), _MAX_S)))
    return min(ends, default=context.noticed)


def _grace(pod: Mapping[str, Any]) -> int:
    seconds = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return min(max(1, seconds if isinstance(seconds, int) else _DEFAULT_GRACE_S), _MAX_S)


def _time(text: object) -> datetime | None:
    with contextlib.suppress(ValueError, TypeError):
        return STEADY.from_wall(datetime.fromisoformat(str(text)).astimezone(UTC))
    return None
