"""Every metric of the agent, with one series at least, and the rows of the page about them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from deploy.rendering import ROOT
from dra_agent.claim import ClaimRef
from dra_agent.health.monitor import Summary
from dra_agent.inventory.model import Device, Inventory
from dra_agent.metrics.allocatable import FreeMemory, Kind
from dra_agent.metrics.api_server import PublishMetrics, ReportingMetrics
from dra_agent.metrics.config import ConfigMetrics
from dra_agent.metrics.liveness import LivenessMetrics
from dra_agent.metrics.process import ProcessMetrics
from dra_agent.metrics.reclaim import ReclaimSnapshot, SourceSnapshot
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import DeviceInfo, DeviceTaint, MetricsSnapshot
from dra_agent.metrics.telemetry import TelemetryMetrics
from dra_agent.publish import PublisherStats
from dra_agent.telemetry.accounting import ClaimUsage
from dra_agent.telemetry.claim_pods import ClaimPods
from dra_agent.telemetry.model import COUNTERS, GAUGES, DeviceSample
from dra_agent.telemetry.sampler import TelemetrySnapshot

GPU = "gpu-0000-01-00-0"
PAGE = ROOT / "docs/reference/metrics.md"
_ROW = re.compile(r"^\| (`[^|]*) \| (gauge|counter|histogram)\b[^|]*\|([^|]*)\|", re.MULTILINE)
_TELEMETRY_ROW = re.compile(r"^\| (`[a-z][^|]*) \| (gauge|counter) \|", re.MULTILINE)


def exposition() -> str:
    """Return /metrics of an agent."""
    return _agent().render()[0].decode()


def exported_types() -> dict[str, str]:
    """Return the types by name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition(), re.MULTILINE))


def documented_types() -> dict[str, str]:
    """Return the types by name that the page has."""
    found: dict[str, str] = {}
    for names, kind, _ in _ROW.findall(PAGE.read_text()):
        for name in re.findall(r"`(\w+)`", names):
            prefixes = ("",) if name.startswith("dra_agent_") else ("dra_agent_device_", "dra_agent_claim_")
            found |= {f"{prefix}{name}": kind for prefix in prefixes}
    return found


def documented_labels() -> dict[str, set[str]]:
    """Return the labels by name, of metrics whose row lists them."""
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, _, labels in _ROW.findall(PAGE.read_text())
        for name in re.findall(r"`(dra_agent_\w+)`", names)
        if not labels.strip().startswith(("the same", "those of a device"))
    }


def _agent() -> Metrics:
    snapshot = MetricsSnapshot(
        devices=(DeviceInfo(GPU, "n/gpu", "free", "GPU-1", "H100", "gpu"),),
        checkpoint_written=1.0,
        excluded={"no-driver": 1},
        second_managers={"gpu.nvidia.com": 1},
        health=Summary(causes=((GPU, "xid-79"),)),
        reclaim=ReclaimSnapshot(
            deadline=1.0, tainted_after=1.0, claims={"prepared": 0}, sources=(SourceSnapshot("aws", True, 1.0, 0),)
        ),
        node="n",
        allocatable={Kind("gpu", "H100", "whole"): 1},
        memory={("gpu", "H100"): FreeMemory(1, 1, 1)},
        taints=(DeviceTaint(GPU, "xid-79", "NoSchedule"),),
    )
    stats = PublisherStats(
        writes={"create": 1}, errors={}, slices=0, pending=(), last_write=1.0, lag_s=0.0, unpublishable=0, problems=()
    )
    metrics = Metrics(lambda: snapshot)
    metrics.observe_phase("cdi", 0.001)
    metrics.add(PublishMetrics(lambda: stats, {}))
    metrics.add(ReportingMetrics(*cast(Any, [SimpleNamespace(written=0, failed=0, waiting=0, lost=0)] * 2)))
    metrics.add(ConfigMetrics(lambda: (True, 0.0, 0)))
    metrics.add(LivenessMetrics(list))
    metrics.add(ProcessMetrics({"reclaim": 0}, lambda: 0))
    metrics.add(_telemetry())
    return metrics


def _telemetry() -> TelemetryMetrics:
    claim, pods = ClaimRef("u", "team-a", "train"), ClaimPods()
    users = {"reservedFor": [{"resource": "pods", "name": "train-0", "uid": "1"}]}
    pods.seen({"metadata": {"uid": claim.uid, "namespace": claim.namespace, "name": claim.name}, "status": users})
    values: dict[str, Any] = dict.fromkeys((*GAUGES, *COUNTERS), 1)
    snapshot = TelemetrySnapshot(
        samples={GPU: DeviceSample(**values, throttle_reasons=("thermal",))},
        holders={GPU: claim},
        usage=(ClaimUsage(claim, GPU, totals=dict.fromkeys(COUNTERS, 1.0), idle_seconds=1.0),),
        sources=("nvml",),
    )
    return TelemetryMetrics(
        lambda: snapshot,
        lambda: Inventory((Device(GPU, "gpu", "nvidia", "0000:01:00.0", {}),)),
        "n",
        lambda: {claim.uid},
        claim_labels=True,
        pods=pods,
        containers=lambda: [("team-a", "train", "train-0", "c")],
    )
