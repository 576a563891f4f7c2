"""Metrics before the first event, and the labels of devices."""

from __future__ import annotations

from dra_agent.health.monitor import Summary
from dra_agent.metrics.api_server import KINDS, METHODS, PublishMetrics
from dra_agent.metrics.reclaim import ReclaimSnapshot
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import DeviceInfo, MetricsSnapshot
from dra_agent.publish import PublisherStats

EMPTY_STATS = PublisherStats(
    writes={}, errors={}, slices=0, pending=(), last_write=None, lag_s=0.0, unpublishable=0, problems=()
)


def samples(snapshot: MetricsSnapshot) -> dict[str, float]:
    metrics = Metrics(lambda: snapshot)
    metrics.add(PublishMetrics(lambda: EMPTY_STATS, {}))
    lines = [line.rpartition(" ") for line in metrics.render()[0].decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_every_series_exists_before_its_first_event() -> None:
    values = samples(MetricsSnapshot(reclaim=ReclaimSnapshot()))
    expected = [
        f'dra_agent_dra_requests_total{{operation="{operation}",result="{result}"}}'
        for operation in ("prepare", "unprepare")
        for result in ("ok", "retryable", "permanent", "defect")
    ]
    expected += [f'dra_agent_registrations_total{{result="{result}"}}' for result in ("registered", "refused")]
    expected += [f'dra_agent_publish_errors_total{{kind="{kind}"}}' for kind in KINDS]
    expected += [f'dra_agent_claims{{state="{state}"}}' for state in ("preparing", "prepared")]
    expected += [f'dra_agent_oldest_claim_age_seconds{{state="{state}"}}' for state in ("preparing", "prepared")]
    expected += [f'dra_agent_api_requests_total{{method="{method}"}}' for method in METHODS]
    expected += [f'dra_agent_device_cause_begun_total{{cause="{cause}"}}' for cause in ("gpu-lost", "xid-79")]
    expected += [
        f'dra_agent_reclaim_fallback_evictions_total{{mode="{mode}",result="{result}"}}'
        for mode in ("evict", "delete")
        for result in ("ok", "budget", "error")
    ]
    assert {name: values.get(name) for name in expected} == dict.fromkeys(expected, 0.0)


def test_devices_are_counted_by_family_pool_and_product() -> None:
    devices = (
        DeviceInfo("gpu-0", "n/gpu", "free", product="H100", family="gpu"),
        DeviceInfo("gpu-1", "n/gpu", "blocked", product="H100", family="gpu"),
        DeviceInfo("nic-0", "n/nic", "free", product="", family="nic"),
    )
    values = samples(MetricsSnapshot(devices=devices, health=Summary(causes=(("gpu-1", "xid-79"),))))
    gpus = 'dra_agent_devices{family="gpu",pool="n/gpu",product="H100",state='
    assert [values[f'{gpus}"{state}"}}'] for state in ("free", "blocked", "prepared")] == [1, 1, 0]
    assert values['dra_agent_devices{family="nic",pool="n/nic",product="",state="free"}'] == 1
    assert values['dra_agent_device_causes{cause="xid-79",device="gpu-1"}'] == 1
