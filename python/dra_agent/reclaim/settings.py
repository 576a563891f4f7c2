"""The `[reclaim]` section of the configuration: which sources are listened to, and how their words are taken.

It holds the section's shape; signals/choice.py turns it into sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

CLOUD_ENDPOINT = "http://169.254.169.254"
"""Where AWS, GCP and Azure answer a host's questions about itself."""

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class NodeTaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A taint of the Node object that says that the node goes away."""

    key: str
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty: any."""
    kind: Literal["hint", "notice"] = "hint"
    seconds: _Seconds | None = None
    """From the taint to the node's end; not given: not known."""


AUTOSCALERS = (
    NodeTaint("karpenter.sh/disrupted"),
    NodeTaint("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
    NodeTaint("aws-node-termination-handler/spot-itn"),
    NodeTaint("aws-node-termination-handler/scheduled-maintenance"),
    NodeTaint("aws-node-termination-handler/asg-lifecycle-termination"),
    NodeTaint("aws-node-termination-handler/rebalance-recommendation"),
    NodeTaint("cloud.google.com/impending-node-termination"),
    NodeTaint("remediator.kubernetes.azure.com/unschedulable"),
)
"""Hints all of them: whoever sets such a taint drains the node by itself."""


Treatment = Literal["ignore", "hint", "notice"]
"""What a signal counts as, at most: planned maintenance with `notice` is a hint until it is near."""


class AwsSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.aws]`."""

    spot: Treatment = "notice"
    autoscaling: Treatment = "notice"
    rebalance: Treatment = "ignore"
    """A recommendation names a risk and no time; AWS's own termination handler ignores it by default as well."""
    maintenance: Treatment = "notice"


class GcpSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.gcp]`."""

    preempted: Treatment = "notice"
    maintenance: Treatment = "notice"


class AzureSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.azure]`, by the type of a scheduled event."""

    preempt: Treatment = "notice"
    terminate: Treatment = "notice"
    reboot: Treatment = "notice"
    redeploy: Treatment = "notice"
    freeze: Treatment = "hint"
    other: Treatment = "hint"
    """Types that this version does not know."""


class ReclaimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim]`."""

    cloud: Literal["auto", "aws", "gcp", "azure", "none"] = "auto"
    """auto: what the host's firmware says that it runs on; an unknown cloud's metadata service is never asked."""
    endpoint: str = CLOUD_ENDPOINT
    """Of the metadata service; for a proxy of your own, or a test."""
    logind: Literal["auto", "on", "off"] = "auto"
    """Whether an orderly shutdown is a notice. auto: where the system's D-Bus is there."""
    dbus_address: str = "unix:path=/run/dbus/system_bus_socket"
    file: Path | None = None
    """A file whose being there is a notice."""
    shutdown: Treatment = "notice"
    """What an orderly shutdown, of which logind reports, counts as."""
    aws: AwsSignals = AwsSignals()
    gcp: GcpSignals = GcpSignals()
    azure: AzureSignals = AzureSignals()
    node_taints: tuple[NodeTaint, ...] = AUTOSCALERS
    lead_seconds: _Seconds = 300.0
    """Maintenance that is announced long before is a hint until this long before it begins, and then a notice."""
    gcp_preemption_seconds: _Seconds = 30.0
    """From GCP's notice to the end: 30, or the instance's own preemptionNoticeDuration."""
    gcp_maintenance_seconds: _Seconds = 60.0
    """From GCP's word that maintenance terminates the instance to the end; 3600 on instances with GPUs."""
    azure_vm_name: str = ""
    """The name that Azure's events call this host by; empty: asked of the metadata service."""
    hook: tuple[str, ...] = ()
    """Without Kubernetes: a program and its arguments, run for each claim before it is released."""
    hook_seconds: _Seconds = 10.0
    """How long it may take, at most."""
    evict: Literal["taint", "auto", "evict", "delete"] = "taint"
    """In a cluster: what is done about pods that the taint does not move. See docs/reclaim.md."""
    cordon: Literal["auto"] | bool = "auto"
    """In a cluster: keep new pods off the node while a notice holds. auto: where a claim of the node is one that pods
    name, so that the next pod of the same claim would come here again."""
    azure_acknowledge: bool = False
    """Tell Azure, once every claim is released, that an event that a user asked for need not wait any longer."""
