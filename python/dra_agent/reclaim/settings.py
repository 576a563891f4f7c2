"""The `[reclaim]` section of the configuration: the enabled sources, and how their signals are treated.

It defines the section; signals/detection.py creates the sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

CLOUD_ENDPOINT = "http://169.254.169.254"
"""Address of the metadata service of AWS, GCP and Azure."""

CONDITION_NAME = "ReclaimNotice"
"""The type of the Node condition that the agent writes is the name of the driver, a slash and this."""

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class NodeTaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A taint of the Node object that announces the removal of the node."""

    key: str
    """The taint's key."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect. Empty: any."""
    kind: Literal["hint", "notice"] = "hint"
    """A hint keeps new claims off the node; a notice releases its claims."""
    seconds: _Seconds | None = None
    """Seconds from the taint to the node's end; none: unknown."""


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
"""All are hints: the components that set these taints drain the node themselves."""


class NodeCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition in the status of the Node object that announces the removal of the node."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    """The condition's type."""
    status: Literal["True", "False", "Unknown"] = "True"
    """The condition's status."""
    reason: str = ""
    """The condition's reason. Empty: any."""
    message: str = ""
    """Text that the condition's message contains, for a type that reports several kinds of events. Empty: any."""
    kind: Literal["hint", "notice"] = "hint"
    """A hint keeps new claims off the node; a notice releases its claims."""
    seconds: _Seconds | None = None
    """Seconds from the condition's last transition to the node's end; none: unknown."""

    def __post_init__(self) -> None:
        """Refuse the condition with which an agent reports a notice itself: it would never end."""
        if self.type.endswith(f"/{CONDITION_NAME}"):
            raise ValueError("an agent sets this condition itself, during a notice")


PREEMPTIONS = (
    NodeCondition("PreemptionScheduled"),
    NodeCondition("VMEventScheduled", message="Preempt"),
)
"""Of AKS, for nodes whose pods cannot reach the metadata service. Hints, as the taints: AKS drains the node itself."""


Treatment = Literal["ignore", "hint", "notice"]
"""The highest kind of a signal: planned maintenance with `notice` is a hint until it is near."""


class AwsSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.aws]`."""

    spot: Treatment = "notice"
    """A spot interruption."""
    autoscaling: Treatment = "notice"
    """The Auto Scaling group terminates the instance."""
    rebalance: Treatment = "ignore"
    """A recommendation reports a risk without a time; AWS's termination handler ignores it by default too."""
    maintenance: Treatment = "notice"
    """A scheduled event that stops, reboots or retires the instance."""


class GcpSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.gcp]`."""

    preempted: Treatment = "notice"
    """A spot or preemptible VM is preempted."""
    maintenance: Treatment = "notice"
    """Maintenance of the host that terminates the VM."""


class AzureSignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim.azure]`, by the type of a scheduled event."""

    preempt: Treatment = "notice"
    """A spot VM is evicted."""
    terminate: Treatment = "notice"
    """The VM is deleted."""
    reboot: Treatment = "notice"
    """The VM is restarted; memory is lost."""
    redeploy: Treatment = "notice"
    """The VM moves to another host; its local disks are lost."""
    freeze: Treatment = "hint"
    """The VM is paused for some seconds."""
    other: Treatment = "hint"
    """Types that this version does not know."""


class ReclaimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[reclaim]`."""

    cloud: Literal["auto", "aws", "gcp", "azure", "none"] = "auto"
    """auto: detected from the host's firmware; the metadata service of an unknown cloud is never contacted."""
    endpoint: str = CLOUD_ENDPOINT
    """URL of the metadata service; change it for a proxy or a test."""
    logind: Literal["auto", "on", "off"] = "auto"
    """Whether an orderly shutdown is a notice. auto: if the system's D-Bus is available."""
    dbus_address: str = "unix:path=/run/dbus/system_bus_socket"
    """Address of the system's D-Bus."""
    file: Path | None = None
    """A file; its existence is a notice."""
    shutdown: Treatment = "notice"
    """Kind of signal for an orderly shutdown that logind reports."""
    aws: AwsSignals = AwsSignals()
    gcp: GcpSignals = GcpSignals()
    azure: AzureSignals = AzureSignals()
    node_taints: tuple[NodeTaint, ...] = AUTOSCALERS
    node_conditions: tuple[NodeCondition, ...] = PREEMPTIONS
    lead_seconds: _Seconds = 300.0
    """Scheduled maintenance is a hint until this many seconds before its start, and then a notice."""
    gcp_preemption_seconds: _Seconds = 30.0
    """Seconds from GCP's notice to the end; set it to the instance's preemptionNoticeDuration, if it has one."""
    gcp_maintenance_seconds: _Seconds = 60.0
    """Seconds from GCP's announcement of maintenance to the instance's end. Set 3600 on instances with GPUs, which the
    agent does not detect here: otherwise their maintenance is a notice at once."""
    azure_vm_name: str = ""
    """The name of this VM in Azure's events; empty: read from the metadata service."""
    hook: tuple[str, ...] = ()
    """Without Kubernetes: a program and its arguments, run for each claim before it is released."""
    hook_seconds: _Seconds = 10.0
    """Seconds that the hook may take."""
    evict: Literal["taint", "auto", "evict", "delete"] = "taint"
    """In a cluster: handling of pods that the taint does not evict. See docs/how-to/operate/reclaim.md."""
    cordon: Literal["auto"] | bool = "auto"
    """In a cluster: keep new pods off the node while a notice holds. auto: where a claim of the node is one that pods
    name, so that the next pod of the same claim would come here again."""
    pod_notices: bool = False
    """In a cluster: pods with the annotation `<driver>/reclaim-notice: "true"` get the notice file, as with
    ReclaimNoticeConfig. Reads the pods of each claim that is prepared, which needs permission to get pods."""
    azure_acknowledge: bool = False
    """Acknowledge a user-initiated Azure event once every claim is released."""
