"""An agent that exports to an OpenTelemetry collector: the same values as /metrics, and collectors that fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.conftest import AgentProcess, Start
from agent.test_kubernetes_mode import allocate, kubernetes, prepare, registered, unprepare
from eventually import eventually
from fake_apiserver.fake import FakeApi
from otlp.collector import Collector, Reply, attributes, samples

__all__ = ["kubernetes"]

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHANGING = re.compile(
    r"process_|python_|dra_agent_(otlp_|api_requests|publish_|oldest|checkpoint_age|reclaim_last|events)"
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def config(tmp_path: Path, collector: Collector) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[otlp]\nendpoint = "{collector.url}"\ninterval = 1\nattributes = {{ "k8s.cluster.name" = "c" }}\n'
    )
    return file


def stable(series: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[Any, float]:
    return {key: value for key, value in series.items() if not CHANGING.match(key[0])}


def exported(collector: Collector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (name, frozenset((key, "+Inf" if key == "le" and value == "inf" else value) for key, value in labels)): value
        for name, labels, value in samples(collector.last_metrics())
    }


def scraped(agent: AgentProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(agent.get("/metrics")[1])
        for sample in family.samples
    }


def test_a_claim_of_the_kubelet_has_spans_and_equal_metrics(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, config: Path, collector: Collector
) -> None:
    agent = kubernetes("--config", str(config)).ready()
    claim = allocate(fake_api, "c")

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            sent = [("traceparent", f"00-{TRACE}-{SPAN}-01")]
            response = await driver.call("prepare", [claim], metadata=sent)
            assert not response.claims[claim[2]].error
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    spans = collector.wait_for_spans(10)
    by_id = {span.span_id: span for span in spans}
    names = {
        span.name: by_id[span.parent_span_id].name if span.parent_span_id in by_id else span.parent_span_id.hex()
        for span in spans
    }
    call = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert names == {
        f"{call}/NodePrepareResources": SPAN,
        "prepare": f"{call}/NodePrepareResources",
        "fetch": "prepare",
        "lock": "prepare",
        "ledger": "prepare",
        "cdi": "prepare",
        f"{call}/NodeUnprepareResources": "",
        "unprepare": f"{call}/NodeUnprepareResources",
        "undo": "unprepare",
        "release": "unprepare",
    }
    for span in spans:
        if span.parent_span_id in by_id:
            parent = by_id[span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    assert attributes(next(span for span in spans if span.name == "prepare"))["dra_agent.claim.uid"] == claim[2]
    eventually(
        lambda: stable(exported(collector)) == stable(scraped(agent)),
        lambda: set(stable(exported(collector)).items()) ^ set(stable(scraped(agent)).items()),
    )
    eventually(lambda: set(exported(collector)) == set(scraped(agent)))
    own = attributes(collector.metrics[-1].resource_metrics[0].resource)
    assert own["service.name"] == "dra-agent" and own["service.instance.id"] == own["k8s.node.name"] == "node-a"
    assert own["k8s.cluster.name"] == "c"
    assert agent.end() == 0


def test_metrics_are_exported_without_a_server_and_counters_of_claims_survive_a_restart(
    start: Start, tmp_path: Path, collector: Collector, state: Path
) -> None:
    import preloaded

    file = tmp_path / "config.toml"
    file.write_text(f'[otlp]\nendpoint = "{collector.url}"\ninterval = 1\n[telemetry]\ninterval = 1\n')
    agent = start("--config", str(file)).ready()
    command = ["claim", "apply", "-f", "examples/classes/gpu.yaml", "-f", "examples/claims/one-gpu.yaml"]
    root = Path(__file__).parents[2]
    done = preloaded.run([*command, "--state-dir", str(state)], cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr

    def idle() -> tuple[int, float] | None:
        for metric in collector.last_metrics() if collector.metrics else ():
            if metric.name == "dra_agent_claim_idle_seconds_total" and metric.sum.data_points:
                point = metric.sum.data_points[0]
                return point.start_time_unix_nano, point.as_double
        return None

    start_ns, first = eventually(idle, agent.log_text) or (0, 0.0)
    assert agent.end() == 0 and "/metrics" not in agent.log_text()
    received = len(collector.metrics)
    agent = start("--config", str(file)).ready()
    eventually(lambda: len(collector.metrics) > received and idle(), agent.log_text)
    assert (idle() or (0, 0.0))[0] == start_ns > 0 and (idle() or (0, 0.0))[1] >= first
    assert agent.end() == 0


@pytest.mark.parametrize("reply", [Reply(hangs=True), Reply(503, {"Retry-After": "3600"})])
def test_an_agent_serves_and_stops_while_the_collector_does_not_respond(
    kubernetes: Callable[..., AgentProcess],
    fake_api: FakeApi,
    kubelet_dir: Path,
    config: Path,
    collector: Collector,
    reply: Reply,
) -> None:
    collector.replies = [reply] * 1000
    agent = kubernetes("--config", str(config)).ready()
    eventually(lambda: collector.paths, agent.log_text)
    claim = allocate(fake_api, "c")

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    assert agent.get("/readyz")[0] == 200
    assert agent.end() == 0 and "is left behind" not in agent.log_text()


def test_an_unusable_file_or_key_ends_the_start(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[otlp]\nendpoint = "http://127.0.0.1:4318"\nheaders_file = "{tmp_path}/none"\n')
    agent = start("--config", str(file))
    assert agent.process.wait(60) == 2
    assert f"otlp.headers_file ({tmp_path}/none): No such file or directory" in agent.log_text()
    file.write_text('[otlp]\nendpoint = "collector:4318"\n')
    agent = start("--config", str(file))
    assert agent.process.wait(60) == 2 and "config.toml:2: otlp.endpoint:" in agent.log_text()
