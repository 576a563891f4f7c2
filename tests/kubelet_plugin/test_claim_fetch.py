"""A response has exactly the requested claims, with devices or an error for each."""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.kubelet_plugin import plugin, service
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.kubelet_plugin.claim_fetch import fetch
from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Claims, Node, Run, claim

CLAIM_C = ("default", "c", "u")
SHORT_BUDGET_S = 1.0
"""For calls that end before their work. The work begins within it; the caller waits as long as the kubelet does."""


class NoRelationshipError(PermanentError):
    """The refusal of the Node authorizer before it knows the claim of a pod."""

    def __init__(self) -> None:
        super().__init__('resourceclaims "c" is forbidden: no relationship found between node "n" and this object')


def test_a_prepared_claim_is_returned_with_its_devices(node: Node, run: Run) -> None:
    node.claims.claims["c"] = claim(
        "c",
        "u",
        allocation={
            "devices": {
                "results": [
                    {"request": "gpus/h100", "driver": "d", "pool": "p", "device": "g", "shareID": "s"},
                    {"request": "nic", "driver": "d", "pool": "q", "device": "n"},
                ]
            }
        },
    )

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", [CLAIM_C])
            assert list(response.claims) == ["u"]
            first, second = response.claims["u"].devices
            assert (first.request_names, first.pool_name, first.device_name) == (["gpus"], "p", "g")
            assert first.cdi_device_ids == ["dra-agent.internal/claim=u-g"]
            assert first.share_id == "s" and first.HasField("share_id")
            assert not second.HasField("share_id")

    run(scenario())


@pytest.mark.parametrize(
    ("claim_", "message"),
    [
        (claim("c", "other"), "was replaced: the API server has one of that name with uid other, not u"),
        (claim("c", "u", reservedFor=[]), "claim default/c: is not allocated"),
        ({"metadata": {"name": "c", "uid": "u"}}, "claim default/c: is not allocated"),
        ({"kind": "Nonsense"}, "with uid None"),
    ],
)
def test_a_mismatched_or_unallocated_claim_is_refused(
    node: Node, run: Run, claim_: dict[str, object], message: str
) -> None:
    node.claims.claims["c"] = claim_

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", [CLAIM_C])
            assert message in response.claims["u"].error
            assert not response.claims["u"].devices
            assert node.devices.calls == []

    run(scenario())


def test_a_failing_claim_does_not_affect_others_of_the_call(node: Node, run: Run) -> None:
    for name in ("good", "bad", "buggy", "late", "gone"):
        node.claims.add(name, f"uid-{name}")
    node.devices.raises = {"uid-bad": PermanentError("no such profile"), "uid-buggy": ZeroDivisionError("x")}
    node.claims.errors["gone"] = [PermanentError("not found")]
    node.claims.errors["late"] = [RetryableError("503"), NoRelationshipError()]

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            names = ["good", "bad", "buggy", "late", "gone"]
            response = await driver.call("prepare", [("default", name, f"uid-{name}") for name in names])
            errors = {uid: response.claims[uid].error for uid in response.claims}
            assert errors == {
                "uid-good": "",
                "uid-late": "",
                "uid-bad": "no such profile",
                "uid-buggy": "claim default/buggy: unexpected ZeroDivisionError: x",
                "uid-gone": "not found",
            }
            assert response.claims["uid-good"].devices and response.claims["uid-late"].devices

    run(scenario())


def test_an_error_without_a_message_is_still_an_error(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    node.devices.raises["u"] = RetryableError("")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].error == "RetryableError"
            assert (await driver.call("unprepare", [CLAIM_C])).claims["u"].error == "RetryableError"

    run(scenario())


def test_claims_of_one_call_are_prepared_concurrently(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(3)

    def wait_for_others(claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        barrier.wait(DEADLINE_S)
        return []

    monkeypatch.setattr(node.devices, "prepare", wait_for_others)
    for name in "abc":
        node.claims.add(name, f"uid-{name}")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", [("default", name, f"uid-{name}") for name in "abc"])
            assert [response.claims[f"uid-{name}"].error for name in "abc"] == ["", "", ""]

    run(scenario())


def test_a_claim_that_cannot_be_fetched_in_time_may_be_retried(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.add("c", "u")
    node.claims.errors["c"] = [RetryableError("no connection")] * 1000
    node.claims.hang = {"hangs"}

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            response = await driver.call("prepare", [CLAIM_C, ("default", "hangs", "v")])
            assert "cannot be read: no connection" in response.claims["u"].error
            assert response.claims["v"].error == (
                "claim default/hangs: cannot be read: the API server does not respond"
            )
            node.claims.errors.clear()
            monkeypatch.undo()
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].error == ""

    run(scenario())


def test_a_call_returns_before_the_deadline_of_its_caller(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.add("c", "u")
    remaining: list[float] = []

    def record_remaining(claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        remaining.append(deadline.remaining())
        return []

    monkeypatch.setattr(node.devices, "prepare", record_remaining)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            for timeout in (20.0, 45.0):
                await driver.call("prepare", [CLAIM_C], timeout=timeout)

    run(scenario())
    # gRPC sends the remaining time of a deadline, rounded up to 0.1 s.
    assert remaining[0] <= 20.0 - service.SPARE_S + 0.1 and remaining[1] <= CALL_TIMEOUT_S


class VirtualTimeSelector(selectors.DefaultSelector):
    """Virtual time: the clock advances at once whenever the loop would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def test_fetches_are_retried_with_growing_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Claims(errors={"c": [RetryableError("no connection")] * 1000})
    selector = VirtualTimeSelector()
    loop = asyncio.SelectorEventLoop(selector)
    monkeypatch.setattr(loop, "time", lambda: selector.now)
    with (
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        pytest.raises(RetryableError, match="cannot be read: no connection"),
    ):
        runner.run(fetch(source, ClaimRef(CLAIM_C[2], CLAIM_C[0], CLAIM_C[1]), 3.4))
    assert 3 < len(source.tries) < 20


def test_a_retried_call_joins_a_slow_prepare(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            canceled_call = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: node.devices.calls)
            canceled_call.cancel()
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            for _ in range(3):
                response = await driver.call("prepare", [CLAIM_C])
                assert "still preparing it" in response.claims["u"].error
            assert plugin.in_flight == ["preparing claim u"]
            assert node.devices.calls == ["prepare u"], "a retry must not take a second thread"
            monkeypatch.undo()
            fetches = len(node.claims.tries)
            repeat = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: len(node.claims.tries) > fetches)
            gate.set()
            assert (await repeat).claims["u"].devices
            assert node.devices.calls == ["prepare u"]
            assert plugin.in_flight == []

    run(scenario())


def test_unprepare_waits_for_a_running_prepare(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            canceled_call = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: node.devices.calls)
            canceled_call.cancel()
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            response = await driver.call("unprepare", [CLAIM_C])
            assert "still preparing it" in response.claims["u"].error
            monkeypatch.undo()
            retry = asyncio.create_task(driver.call("unprepare", [CLAIM_C]))
            await eventually_async(lambda: plugin.executor.waiters("u"))
            gate.set()
            assert (await retry).claims["u"].error == ""
            assert node.devices.calls == ["prepare u", "unprepare u"]

    run(scenario())


def test_a_reallocated_claim_is_not_returned_with_the_old_devices(node: Node, run: Run) -> None:
    node.claims.add("c", "u", device="old")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            first = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: node.devices.calls)
            node.claims.add("c", "u", device="new")
            fetches = len(node.claims.tries)
            second = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: len(node.claims.tries) > fetches)
            gate.set()
            assert (await first).claims["u"].devices[0].device_name == "old"
            assert (await second).claims["u"].devices[0].device_name == "new"

    run(scenario())


def test_unprepare_needs_neither_api_server_nor_known_claim(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("unprepare", [("default", "a", "u"), ("default", "b", "v")])
            assert {uid: response.claims[uid].error for uid in response.claims} == {"u": "", "v": ""}
            assert node.claims.tries == []

    run(scenario())


def test_calls_wait_until_the_devices_are_known(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.registered(serve=False) as (plugin, driver):
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            response = await driver.call("prepare", [CLAIM_C])
            assert "still starting" in response.claims["u"].error
            monkeypatch.undo()
            fetches = len(node.claims.tries)
            waiting = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: len(node.claims.tries) > fetches)
            plugin.serve(node.devices)
            assert (await waiting).claims["u"].devices

    run(scenario())


def test_invalid_names_never_reach_the_api_server(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", [("default", "../../secrets/x", "u"), ("", "c", "v")])
            assert "is not a valid API name" in response.claims["u"].error
            assert "is not a valid API name" in response.claims["v"].error
            assert node.claims.tries == []

    run(scenario())


def test_running_calls_are_finished_at_shutdown(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.kubelet() as kubelet, node.plugin() as plugin:
            driver = await kubelet.driver()
            running = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: plugin.in_flight)
            closing = asyncio.create_task(plugin.close())
            await eventually_async(lambda: not kubelet.sockets(), "the registration socket must be removed at once")
            assert not closing.done()
            gate.set()
            assert (await running).claims["u"].devices
            await closing

    run(scenario())


def test_hanging_work_does_not_prevent_a_shutdown(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "GRACE_S", 0.3)
    node.claims.add("c", "u")
    node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            hung = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: plugin.in_flight)
            await plugin.close()
            assert plugin.in_flight == ["preparing claim u"]
            with pytest.raises(grpc.aio.AioRpcError):
                await hung

    run(scenario())


def test_queued_work_is_dropped_when_its_caller_has_timed_out() -> None:
    """Otherwise a prepare could follow the release of its claim."""
    gate, results = threading.Event(), []

    async def scenario() -> None:
        executor = ClaimExecutor(1)
        now = asyncio.get_running_loop().time
        running = asyncio.create_task(executor.run("u1", "preparing", None, lambda: gate.wait(60), now() + 120))
        await eventually_async(lambda: executor.in_flight)
        with pytest.raises(RetryableError, match="still preparing it"):
            await executor.run("u2", "preparing", None, lambda: results.append("prepared"), now() + 0.1)
        gate.set()
        assert await running
        # With one thread, earlier entries of the queue have been processed.
        assert await executor.run("u3", "preparing", None, lambda: "done", now() + 120) == "done"
        assert results == [] and executor.in_flight == []

    asyncio.run(scenario())


def test_a_shutdown_waits_for_recent_work_only() -> None:
    gate = threading.Event()

    async def scenario() -> None:
        executor = ClaimExecutor(2)
        loop = asyncio.get_running_loop()
        hung = asyncio.create_task(executor.run("u", "preparing", None, lambda: gate.wait(60), loop.time() + 120))
        await eventually_async(lambda: executor.in_flight)
        seen_s = loop.time()
        assert 0 < executor.worth_waiting(100.0) <= 100.0
        now_s = loop.time()
        assert executor.worth_waiting(0.0) <= 0 and executor.worth_waiting(50.0) <= seen_s + 50.0 - now_s
        assert not await executor.finished(0.0)
        gate.set()
        assert await hung and await executor.finished(60.0)

    asyncio.run(scenario())


def test_a_shutdown_drops_queued_work_and_accepts_none() -> None:
    gate, started = threading.Event(), []

    async def scenario() -> None:
        executor = ClaimExecutor(1)
        deadline = asyncio.get_running_loop().time() + 120
        assert executor.worth_waiting(5.0) == 0.0

        def hang() -> str:
            started.append(threading.current_thread().name)
            gate.wait(60)
            return "done"

        running = asyncio.create_task(executor.run("u1", "preparing", None, hang, deadline))
        await eventually_async(lambda: started)
        queued = asyncio.create_task(executor.run("u2", "preparing", None, lambda: started.append("u2"), deadline))
        await eventually_async(lambda: len(executor.in_flight) == 2)
        executor.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await queued
        gate.set()
        assert await running == "done"
        assert len(started) == 1 and started[0].startswith("claims"), (
            "thread names identify the work of a hanging agent"
        )

    asyncio.run(scenario())


def test_an_error_after_a_timeout_is_not_an_unhandled_error(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    gc.collect()  # report what earlier tests left unhandled
    caplog.clear()

    def fail() -> None:
        gate.wait(60)
        raise ValueError("late")

    async def scenario() -> None:
        executor = ClaimExecutor(1)
        with pytest.raises(RetryableError, match="still preparing it"):
            await executor.run("u", "preparing", None, fail, asyncio.get_running_loop().time() + 0.05)
        gate.set()
        await eventually_async(lambda: not executor.in_flight)
        gc.collect()
        executor.close()

    asyncio.run(scenario())
    assert not caplog.records


OUTCOMES = ["good", "permanent", "retryable", "bug", "gone", "replaced", "pending", "early", "no name"]


@given(
    requested=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(OUTCOMES)), max_size=12),
    twice=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_the_requested_claims_are_returned(node: Node, requested: list[tuple[int, str]], twice: bool) -> None:
    outcomes = dict(requested)
    node.claims.claims.clear()
    node.claims.errors.clear()
    node.devices.raises.clear()
    for number, outcome in outcomes.items():
        name, uid = f"c{number}", f"uid-{number}"
        node.claims.add(name, "another" if outcome == "replaced" else uid)
        match outcome:
            case "permanent":
                node.devices.raises[uid] = PermanentError("no")
            case "retryable":
                node.devices.raises[uid] = RetryableError("not now")
            case "bug":
                node.devices.raises[uid] = RuntimeError("bug")
            case "gone":
                node.claims.errors[name] = [PermanentError("not found")] * 3
            case "pending":
                node.claims.claims[name]["status"] = {}
            case "early":
                node.claims.errors[name] = [NoRelationshipError()]
    claims = [
        ("default", f"C {number}" if outcomes[number] == "no name" else f"c{number}", f"uid-{number}")
        for number, _ in requested
    ]

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", claims * (2 if twice else 1))
            assert set(response.claims) == {f"uid-{number}" for number in outcomes}
            for number, outcome in outcomes.items():
                result = response.claims[f"uid-{number}"]
                assert bool(result.error) != bool(result.devices)
                assert bool(result.devices) == (outcome in ("good", "early")), (outcome, result.error)

    asyncio.run(scenario())


def test_a_uid_with_two_names_is_refused_without_affecting_others(node: Node, run: Run) -> None:
    node.claims.add("a", "u")
    node.claims.add("b", "v")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call(
                "prepare", [("default", "a", "u"), ("default", "z", "u"), ("default", "a", "u"), ("default", "b", "v")]
            )
            assert set(response.claims) == {"u", "v"}
            assert "two names" in response.claims["u"].error
            assert response.claims["v"].devices

    run(scenario())


def test_the_timeout_is_well_below_that_of_the_kubelet() -> None:
    assert CALL_TIMEOUT_S + 2 * service.SPARE_S < 45


def test_a_stop_does_not_wait_for_work_that_ends_meanwhile() -> None:
    """All waits of `finished` begin a turn of the loop later; work may have ended by then."""

    async def scenario() -> None:
        executor = ClaimExecutor(2)
        loop = asyncio.get_running_loop()
        began, work = threading.Event(), []
        for uid in ("a", "b"):
            call = executor.run(uid, "preparing", None, began.wait, loop.time() + DEADLINE_S)
            work.append(asyncio.create_task(call))
        await asyncio.sleep(0)
        finishing = asyncio.create_task(executor.finished(DEADLINE_S))
        began.set()
        await asyncio.gather(*work)
        start_s = loop.time()
        assert await finishing
        assert loop.time() - start_s < DEADLINE_S / 2
        executor.close()

    asyncio.run(scenario())
