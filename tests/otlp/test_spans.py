"""Spans of the kubelet's calls: their tree, their times, their errors, and what identifies a claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.kubelet_plugin import service
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.otlp.encoding import encode_spans, resource
from dra_agent.otlp.preparer import TracedPreparer
from dra_agent.otlp.spans import SpanQueue, Tracer
from eventually import eventually_async
from kubelet_plugin.conftest import Node, claim
from otlp.collector import attributes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PREPARE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
CLAIM_C = ("team", "c", "u")
CLAIM_D = ("team", "d", "v")


class Rig:
    """A plugin whose calls have spans, and metrics as the agent connects them."""

    def __init__(self, folder: Path, *, names_claims: bool = True) -> None:
        self.node = Node(folder)
        self.tracer = Tracer(SpanQueue(), names_claims=names_claims)
        self.metrics = Metrics(MetricsSnapshot)
        self.metrics.follow_phases(self.tracer.observe_phase)
        prepare = self.node.devices.prepare

        def with_phases(claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
            devices = prepare(claim, deadline)
            for phase in ("lock", "ledger", "cdi"):
                self.metrics.observe_phase(phase, 0.0)
            return devices

        self.node.devices.prepare = with_phases  # type: ignore[method-assign]

    def run(self, scenario: Callable[[Any], Any]) -> list[trace_pb2.Span]:
        async def whole() -> None:
            async with self.node.registered(tracer=self.tracer, metrics=self.metrics) as (_, driver):
                await scenario(driver)

        asyncio.run(whole())
        return self.spans()

    def spans(self) -> list[trace_pb2.Span]:
        """Return the ended spans as the collector gets them."""
        body = encode_spans(self.tracer.queue.take(1000), resource({}))
        return list(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans)


@pytest.fixture
def rig(short_path: Path) -> Rig:
    return Rig(short_path)


def tree(spans: Sequence[trace_pb2.Span], parent: bytes = b"") -> dict[str, Any]:
    """Return the names of spans below a parent; each begins and ends within it."""
    found: dict[str, Any] = {}
    for span in spans:
        if span.parent_span_id == parent:
            below = [child for child in spans if child.parent_span_id == span.span_id]
            for child in below:
                assert child.trace_id == span.trace_id
                assert span.start_time_unix_nano <= child.start_time_unix_nano
                assert child.start_time_unix_nano <= child.end_time_unix_nano <= span.end_time_unix_nano
            found[span.name] = tree(spans, span.span_id)
    return found


PHASES: dict[str, Any] = {"fetch": {}, "lock": {}, "ledger": {}, "cdi": {}}


def test_a_call_with_one_claim_has_all_its_steps(rig: Rig) -> None:
    rig.node.claims.claims["c"] = claim("c", "u")

    async def scenario(driver: Any) -> None:
        assert not (await driver.call("prepare", [CLAIM_C])).claims["u"].error
        await driver.call("unprepare", [CLAIM_C])

    spans = rig.run(scenario)
    assert tree(spans) == {PREPARE: {"prepare": PHASES}, UNPREPARE: {"unprepare": {}}}
    call = next(span for span in spans if span.name == PREPARE)
    assert call.kind == trace_pb2.Span.SPAN_KIND_SERVER and call.status.code == trace_pb2.Status.STATUS_CODE_UNSET
    assert attributes(call)["rpc.method"] == "NodePrepareResources" and attributes(call)["dra_agent.claims"] == 1
    one = next(span for span in spans if span.name == "prepare")
    assert attributes(one) == {
        "k8s.namespace.name": "team",
        "dra_agent.claim.name": "c",
        "dra_agent.claim.uid": "u",
        "dra_agent.devices": 1,
        "dra_agent.pools": ["n/gpu"],
    }
    assert len({span.span_id for span in spans}) == len(spans)


def test_a_call_with_several_claims_has_a_span_for_each_on_any_thread(rig: Rig) -> None:
    rig.node.claims.claims |= {"c": claim("c", "u"), "d": claim("d", "v")}

    async def scenario(driver: Any) -> None:
        await driver.call("prepare", [CLAIM_C, CLAIM_D])
        await driver.call("unprepare", [CLAIM_C, CLAIM_D])

    spans = rig.run(scenario)
    prepares = [span for span in spans if span.name == "prepare"]
    assert {attributes(span)["dra_agent.claim.uid"] for span in prepares} == {"u", "v"}
    for span in prepares:
        assert tree(spans, span.span_id) == PHASES
    assert [tree(spans, span.span_id) for span in spans if span.name == "unprepare"] == [{}, {}]
    assert set(tree(spans)) == {PREPARE, UNPREPARE}


def test_a_call_continues_the_trace_of_its_caller(rig: Rig) -> None:
    rig.node.claims.claims["c"] = claim("c", "u")

    async def scenario(driver: Any) -> None:
        sent = [("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "a=b")]
        await driver.call("prepare", [CLAIM_C], metadata=sent)

    spans = rig.run(scenario)
    assert {span.trace_id.hex() for span in spans} == {TRACE} and {span.trace_state for span in spans} == {"a=b"}
    assert tree(spans, bytes.fromhex(SPAN)) == {PREPARE: {"prepare": PHASES}}
    remote = [span.name for span in spans if span.flags & trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK]
    assert remote == [PREPARE]


@pytest.mark.parametrize("claims", [[CLAIM_C], [CLAIM_C, CLAIM_D]])
def test_a_trace_that_its_caller_does_not_record_has_no_spans(rig: Rig, claims: list[tuple[str, str, str]]) -> None:
    rig.node.claims.claims |= {"c": claim("c", "u"), "d": claim("d", "v")}

    async def scenario(driver: Any) -> None:
        await driver.call("prepare", claims, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-00")])
        await driver.call("unprepare", claims, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-00")])
        assert len(rig.tracer.queue) == 0
        await driver.call("unprepare", [CLAIM_C], metadata=[("traceparent", "00-nonsense")])

    assert set(tree(rig.run(scenario))) == {UNPREPARE}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RetryableError("busy", where="claim team/c"), "retryable"),
        (PermanentError("wrong", where="claim team/c"), "permanent"),
        (ZeroDivisionError(), "defect"),
    ],
)
@pytest.mark.parametrize("claims", [[CLAIM_C], [CLAIM_C, CLAIM_D]])
@pytest.mark.parametrize("names_claims", [True, False])
def test_an_error_has_its_class(
    short_path: Path,
    error: Exception,
    expected: str,
    claims: list[tuple[str, str, str]],
    names_claims: bool,
) -> None:
    rig = Rig(short_path, names_claims=names_claims)
    rig.node.claims.claims |= {"c": claim("c", "u"), "d": claim("d", "v")}
    rig.node.devices.raises["u"] = error

    async def scenario(driver: Any) -> None:
        assert (await driver.call("prepare", claims)).claims["u"].error

    spans = rig.run(scenario)
    failed = [span for span in spans if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR]
    assert sorted(span.name for span in failed) == [PREPARE, "prepare"]
    assert {attributes(span)["error.type"] for span in failed} == {expected}
    texts = "".join(f"{span.status.message} {attributes(span)}" for span in spans)
    assert ("team" in texts) is names_claims, "names of claims are shown only where they may be"


def test_a_claim_that_is_read_again_has_a_span_for_each_attempt(rig: Rig) -> None:
    rig.node.claims.claims["c"] = claim("c", "u")
    rig.node.claims.errors["c"] = [RetryableError("the API server is not available")]

    async def scenario(driver: Any) -> None:
        assert not (await driver.call("prepare", [CLAIM_C])).claims["u"].error

    spans = rig.run(scenario)
    first, second = [span for span in spans if span.name == "prepare"]
    assert attributes(first)["error.type"] == "retryable" and "error.type" not in attributes(second)
    assert tree(spans, second.span_id) == PHASES
    call = next(span for span in spans if span.name == PREPARE)
    assert call.status.code == trace_pb2.Status.STATUS_CODE_UNSET, "the call has succeeded"


def test_a_call_that_is_answered_at_its_deadline_is_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CALL_TIMEOUT_S", 0.2)
    rig.node.claims.claims["c"] = claim("c", "u")
    gate = rig.node.devices.gates["u"] = threading.Event()

    async def scenario(driver: Any) -> None:
        assert "still preparing" in (await driver.call("prepare", [CLAIM_C])).claims["u"].error
        gate.set()
        await eventually_async(lambda: len(rig.tracer.queue) == 6)

    spans = rig.run(scenario)
    call = next(span for span in spans if span.name == PREPARE)
    assert attributes(call)["error.type"] == "late" and tree(spans) == {PREPARE: {"prepare": PHASES}}


def test_a_malformed_call_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_CLAIMS", 1)

    async def scenario(driver: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="more than 1 claims"):
            await driver.call("prepare", [CLAIM_C, CLAIM_D])

    (call,) = rig.run(scenario)
    assert attributes(call)["error.type"] == "refused" and attributes(call)["dra_agent.claims"] == 2


def test_claims_of_standalone_mode_have_spans_without_a_call(rig: Rig) -> None:
    preparer = TracedPreparer(rig.node.devices, rig.tracer)
    preparer.prepare(claim("c", "u"), Deadline.of(60))
    preparer.unprepare("u", Deadline.of(60))
    rig.node.devices.raises["u"] = PermanentError("wrong")
    with pytest.raises(PermanentError):
        preparer.unprepare("u", Deadline.of(60))
    spans = rig.spans()
    assert tree(spans) == {"prepare": {"lock": {}, "ledger": {}, "cdi": {}}, "unprepare": {}}
    assert [attributes(span).get("error.type") for span in spans if span.name == "unprepare"] == [None, "permanent"]


def test_a_phase_without_a_call_has_no_span(rig: Rig) -> None:
    rig.metrics.observe_phase("cdi", 0.1)
    assert len(rig.tracer.queue) == 0


def test_a_step_of_the_wall_clock_does_not_move_a_child_out_of_its_parent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.tracer.begin("parent") as parent:
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        parent.phase("phase", 3600.0)
        with parent.child("child"):
            pass
    assert tree(rig.spans()) == {"parent": {"phase": {}, "child": {}}}
