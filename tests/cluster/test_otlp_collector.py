"""The agent's OTLP export and a real OpenTelemetry Collector: the spans of a claim and the metrics of a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.conftest import StartAgent
from cluster.kube import prerequisites
from cluster.kube.agent import Agent
from cluster.kube.api import Object
from cluster.kube.cluster import Cluster
from cluster.kube.otel_collector import OtelCollector
from cluster.kube.workload import Namespace, request

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
PREPARE, UNPREPARE = f"{SERVICE}NodePrepareResources", f"{SERVICE}NodeUnprepareResources"
PHASES = {"fetch", "lock", "ledger", "cdi"}


@pytest.fixture
def collector(cluster: Cluster) -> Iterator[OtelCollector]:
    try:
        created = OtelCollector(cluster)
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    created.start()
    yield created
    created.process.kill()
    print(created.process.tail(40))


@pytest.fixture
def exporting(cluster: Cluster, collector: OtelCollector, start_agent: StartAgent) -> Agent:
    """An agent that exports each second, with the names of claims."""
    config = cluster.node("node-a").directory / "config.toml"
    config.write_text(
        f'[telemetry]\nclaim_labels = "on"\n[otlp]\nendpoint = "{collector.endpoint}"\ninterval = 1\n'
        'attributes = { "k8s.cluster.name" = "scenarios" }\n'
    )
    return start_agent("node-a", "dgx-h100", "--config", str(config))


def of_claim(collector: OtelCollector, name: str, uid: str) -> Object:
    """Return the span of that name of a claim."""
    found = [
        span
        for span in collector.spans()
        if span["name"] == name and span["attributes"].get("dra_agent.claim.uid") == uid
    ]
    assert len(found) == 1, f"{len(found)} spans {name} of claim {uid}"
    return found[0]


def series(collector: OtelCollector, metric: str, kind: str) -> list[Object]:
    """Return the data points of the newest export of a metric."""
    newest = [found for found in collector.metrics() if found["name"] == metric][-1]
    points: list[Object] = newest[kind]["dataPoints"]
    return points


def test_spans_of_a_claim_arrive(exporting: Agent, collector: OtelCollector, namespace: Namespace) -> None:
    namespace.claim("one", request("gpu", "gpu"))
    uid = namespace.get_claim("one")["metadata"]["uid"]
    namespace.pod("user", claim="one")
    namespace.running("user")
    namespace.api.wait(lambda: of_claim(collector, "prepare", uid), "the span of the claim arrives")
    prepare = of_claim(collector, "prepare", uid)
    assert prepare["resource"].items() >= {
        ("service.name", "dra-agent"),
        ("k8s.node.name", "node-a"),
        ("k8s.cluster.name", "scenarios"),
    }
    attributes = prepare["attributes"]
    assert (attributes["k8s.namespace.name"], attributes["dra_agent.claim.name"]) == (namespace.name, "one")
    assert attributes["dra_agent.devices"] == "1"

    trace = [span for span in collector.spans() if span["traceId"] == prepare["traceId"]]
    (call,) = (span for span in trace if span["spanId"] == prepare["parentSpanId"])
    assert call["name"] == PREPARE and not call.get("parentSpanId")
    phases = [span for span in trace if span.get("parentSpanId") == prepare["spanId"]]
    assert {span["name"] for span in phases} >= PHASES
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in trace)

    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: of_claim(collector, "unprepare", uid), "the span of the release arrives")
    unprepare = of_claim(collector, "unprepare", uid)
    assert any(span["name"] == UNPREPARE and span["spanId"] == unprepare["parentSpanId"] for span in collector.spans())


def test_metrics_arrive_as_they_are_served(exporting: Agent, collector: OtelCollector, namespace: Namespace) -> None:
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one")
    namespace.running("user")

    def prepared() -> float:
        (point,) = series(collector, "dra_agent_prepared_claims", "gauge")
        return float(point["asDouble"] if "asDouble" in point else point["asInt"])

    namespace.api.wait(lambda: prepared() == 1, "the metric of prepared claims arrives")
    (metric, *_) = (found for found in collector.metrics() if found["name"] == "dra_agent_prepared_claims")
    assert metric["resource"]["k8s.node.name"] == "node-a"
    requests = [found for found in collector.metrics() if found["name"] == "dra_agent_dra_requests_total"][-1]
    assert requests["sum"]["isMonotonic"] and requests["sum"]["aggregationTemporality"] == 2
    names = {found["name"] for found in collector.metrics()}
    served = {line.split()[2] for line in exporting.get("/metrics")[1].splitlines() if line.startswith("# TYPE")}
    assert names & served >= {"dra_agent_prepared_claims", "dra_agent_dra_requests_total", "dra_agent_devices"}


def test_a_collector_that_restarts_gets_the_spans_later(
    exporting: Agent, collector: OtelCollector, namespace: Namespace
) -> None:
    collector.process.kill()
    namespace.claim("one", request("gpu", "gpu"))
    uid = namespace.get_claim("one")["metadata"]["uid"]
    namespace.pod("user", claim="one")
    namespace.running("user")
    failed = 'dra_agent_otlp_exports_total{result="failed",signal="traces"}'
    namespace.api.wait(lambda: exporting.metrics()[failed] > 0, "an export of spans has failed")
    collector.start()
    namespace.api.wait(lambda: of_claim(collector, "prepare", uid), "the span of the claim arrives")
