"""What a call is answered with: exactly the claims that it asked for, whatever becomes of each."""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading
import time
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.kubelet_plugin import plugin, service
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.kubelet_plugin.claim_fetch import fetch
from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Claims, Node, Run, claim

C = ("default", "c", "u")
SHORT_BUDGET_S = 0.2
"""For calls that are to be answered before their work is done; who asks waits as long as the kubelet does."""


class EarlyError(PermanentError):
    """As the Node authorizer refuses."""

    def __init__(self) -> None:
        super().__init__('resourceclaims "c" is forbidden: no relationship found between node "n" and this object')


def test_a_prepared_claim_is_answered_with_its_devices(node: Node, run: Run) -> None:
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
            answer = await driver.call("prepare", [C])
            assert list(answer.claims) == ["u"]
            first, second = answer.claims["u"].devices
            assert (first.request_names, first.pool_name, first.device_name) == (["gpus"], "p", "g")
            assert first.cdi_device_ids == ["dra-agent.internal/claim=u-g"]
            assert first.share_id == "s" and first.HasField("share_id")
            assert not second.HasField("share_id")

    run(scenario())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (claim("c", "other"), "was replaced: the API server has one of that name with uid other, not u"),
        (claim("c", "u", reservedFor=[]), "claim default/c: is not allocated"),
        ({"metadata": {"name": "c", "uid": "u"}}, "claim default/c: is not allocated"),
        ({"kind": "Nonsense"}, "with uid None"),
    ],
)
def test_a_claim_that_is_not_the_one_is_refused(node: Node, run: Run, found: dict[str, object], says: str) -> None:
    node.claims.claims["c"] = found

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call("prepare", [C])
            assert says in answer.claims["u"].error
            assert not answer.claims["u"].devices
            assert node.devices.calls == []

    run(scenario())


def test_one_bad_claim_never_fails_its_neighbours(node: Node, run: Run) -> None:
    for name in ("good", "bad", "buggy", "late", "gone"):
        node.claims.add(name, f"uid-{name}")
    node.devices.raises = {"uid-bad": PermanentError("no such profile"), "uid-buggy": ZeroDivisionError("x")}
    node.claims.errors["gone"] = [PermanentError("not found")]
    node.claims.errors["late"] = [RetryableError("503"), EarlyError()]

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            names = ["good", "bad", "buggy", "late", "gone"]
            answer = await driver.call("prepare", [("default", name, f"uid-{name}") for name in names])
            errors = {uid: answer.claims[uid].error for uid in answer.claims}
            assert errors == {
                "uid-good": "",
                "uid-late": "",
                "uid-bad": "no such profile",
                "uid-buggy": "claim default/buggy: unexpected ZeroDivisionError: x",
                "uid-gone": "not found",
            }
            assert answer.claims["uid-good"].devices and answer.claims["uid-late"].devices

    run(scenario())


def test_an_error_without_words_is_an_error_all_the_same(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    node.devices.raises["u"] = RetryableError("")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert (await driver.call("prepare", [C])).claims["u"].error == "RetryableError"
            assert (await driver.call("unprepare", [C])).claims["u"].error == "RetryableError"

    run(scenario())


def test_claims_of_one_call_are_read_and_prepared_side_by_side(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)

    def meet(claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        together.wait(DEADLINE_S)
        return []

    monkeypatch.setattr(node.devices, "prepare", meet)
    for name in "abc":
        node.claims.add(name, f"uid-{name}")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call("prepare", [("default", name, f"uid-{name}") for name in "abc"])
            assert [answer.claims[f"uid-{name}"].error for name in "abc"] == ["", "", ""]

    run(scenario())


def test_a_claim_that_cannot_be_read_in_time_may_be_asked_for_again(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.add("c", "u")
    node.claims.errors["c"] = [RetryableError("no connection")] * 1000
    node.claims.hang = {"hangs"}

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            monkeypatch.setattr(service, "BUDGET_S", SHORT_BUDGET_S)
            answer = await driver.call("prepare", [C, ("default", "hangs", "v")])
            assert "cannot be read: no connection" in answer.claims["u"].error
            assert answer.claims["v"].error == ("claim default/hangs: cannot be read: the API server does not respond")
            node.claims.errors.clear()
            monkeypatch.undo()
            assert (await driver.call("prepare", [C])).claims["u"].error == ""

    run(scenario())


def test_a_call_is_answered_before_its_caller_gives_up(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    left: list[float] = []

    def look(claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        left.append(deadline.remaining())
        return []

    monkeypatch.setattr(node.devices, "prepare", look)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            for timeout in (20.0, 45.0):
                await driver.call("prepare", [C], timeout=timeout)

    run(scenario())
    # gRPC sends what is left of a deadline, rounded up to a tenth of a second.
    assert left[0] <= 20.0 - service.SPARE_S + 0.1 and left[1] <= service.BUDGET_S


class Idle(selectors.DefaultSelector):
    """Time that passes only while nothing is to be done, and then at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def test_the_api_server_is_asked_again_with_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Claims(errors={"c": [RetryableError("no connection")] * 1000})
    idle = Idle()
    loop = asyncio.SelectorEventLoop(idle)
    monkeypatch.setattr(loop, "time", lambda: idle.now)
    with (
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        pytest.raises(RetryableError, match="cannot be read: no connection"),
    ):
        runner.run(fetch(source, ClaimRef(C[2], C[0], C[1]), 3.4))
    assert 3 < len(source.tries) < 20


def test_a_slow_prepare_is_joined_by_the_repeat(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            given_up = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: node.devices.calls)
            given_up.cancel()
            monkeypatch.setattr(service, "BUDGET_S", SHORT_BUDGET_S)
            for _ in range(3):
                answer = await driver.call("prepare", [C])
                assert "still preparing it" in answer.claims["u"].error
            assert plugin.in_flight == ["preparing claim u"]
            assert node.devices.calls == ["prepare u"], "a repeat must not take a second thread"
            monkeypatch.undo()
            asked = len(node.claims.tries)
            repeat = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: len(node.claims.tries) > asked)
            gate.set()
            assert (await repeat).claims["u"].devices
            assert node.devices.calls == ["prepare u"]
            assert plugin.in_flight == []

    run(scenario())


def test_unprepare_waits_for_a_running_prepare(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            given_up = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: node.devices.calls)
            given_up.cancel()
            monkeypatch.setattr(service, "BUDGET_S", SHORT_BUDGET_S)
            answer = await driver.call("unprepare", [C])
            assert "still preparing it" in answer.claims["u"].error
            monkeypatch.undo()
            last = asyncio.create_task(driver.call("unprepare", [C]))
            await asyncio.sleep(0.1)
            gate.set()
            assert (await last).claims["u"].error == ""
            assert node.devices.calls == ["prepare u", "unprepare u"]

    run(scenario())


def test_a_claim_that_was_allocated_anew_is_not_answered_with_the_old_devices(node: Node, run: Run) -> None:
    node.claims.add("c", "u", device="old")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            first = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: node.devices.calls)
            node.claims.add("c", "u", device="new")
            asked = len(node.claims.tries)
            second = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: len(node.claims.tries) > asked)
            gate.set()
            assert (await first).claims["u"].devices[0].device_name == "old"
            assert (await second).claims["u"].devices[0].device_name == "new"

    run(scenario())


def test_unprepare_needs_no_api_server_and_no_known_claim(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call("unprepare", [("default", "a", "u"), ("default", "b", "v")])
            assert {uid: answer.claims[uid].error for uid in answer.claims} == {"u": "", "v": ""}
            assert node.claims.tries == []

    run(scenario())


def test_calls_wait_for_the_devices_to_be_known(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.registered(serve=False) as (plugin, driver):
            monkeypatch.setattr(service, "BUDGET_S", SHORT_BUDGET_S)
            answer = await driver.call("prepare", [C])
            assert "still starting" in answer.claims["u"].error
            monkeypatch.undo()
            asked = len(node.claims.tries)
            waiting = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: len(node.claims.tries) > asked)
            plugin.serve(node.devices)
            assert (await waiting).claims["u"].devices

    run(scenario())


def test_names_that_are_none_never_reach_the_api_server(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call("prepare", [("default", "../../secrets/x", "u"), ("", "c", "v")])
            assert "is not a valid API name" in answer.claims["u"].error
            assert "is not a valid API name" in answer.claims["v"].error
            assert node.claims.tries == []

    run(scenario())


def test_running_calls_are_finished_at_the_end(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.kubelet() as kubelet, node.plugin() as plugin:
            driver = await kubelet.driver()
            running = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: plugin.in_flight)
            closing = asyncio.create_task(plugin.close())
            await eventually_async(lambda: not kubelet.sockets(), "the kubelet must turn to another instance at once")
            assert not closing.done()
            gate.set()
            assert (await running).claims["u"].devices
            await closing

    run(scenario())


def test_what_hangs_does_not_keep_the_agent_from_stopping(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "GRACE_S", 0.3)
    node.claims.add("c", "u")
    node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            hung = asyncio.create_task(driver.call("prepare", [C]))
            await eventually_async(lambda: plugin.in_flight)
            began = time.monotonic()
            await plugin.close()
            assert time.monotonic() - began < 50
            assert plugin.in_flight == ["preparing claim u"]
            with pytest.raises(grpc.aio.AioRpcError):
                await hung

    run(scenario())


def test_work_that_has_not_begun_is_not_begun_for_who_no_longer_waits() -> None:
    """Else a prepare could follow the release of its claim."""
    gate, late = threading.Event(), []

    async def scenario() -> None:
        turns = ClaimExecutor(1)
        now = asyncio.get_running_loop().time
        running = asyncio.create_task(turns.run("u1", "preparing", None, lambda: gate.wait(60), now() + 120))
        await eventually_async(lambda: turns.in_flight)
        with pytest.raises(RetryableError, match="still preparing it"):
            await turns.run("u2", "preparing", None, lambda: late.append("prepared"), now() + 0.1)
        gate.set()
        assert await running
        # One thread: whatever was before this in the queue has had its turn.
        assert await turns.run("u3", "preparing", None, lambda: "done", now() + 120) == "done"
        assert late == [] and turns.in_flight == []

    asyncio.run(scenario())


def test_a_stop_waits_for_what_may_end_and_not_for_what_hangs() -> None:
    gate = threading.Event()

    async def scenario() -> None:
        turns = ClaimExecutor(2)
        loop = asyncio.get_running_loop()
        hung = asyncio.create_task(turns.run("u", "preparing", None, lambda: gate.wait(60), loop.time() + 120))
        await eventually_async(lambda: turns.in_flight)
        assert 0 < turns.worth_waiting(100.0) <= 100.0
        began = turns._work["u"].began
        now = loop.time()
        assert turns.worth_waiting(0.0) <= 0 and turns.worth_waiting(50.0) <= began + 50.0 - now
        assert not await turns.finished(0.0)
        gate.set()
        assert await hung and await turns.finished(60.0)

    asyncio.run(scenario())


def test_a_stop_drops_what_has_not_begun_and_begins_nothing_more() -> None:
    gate, begun = threading.Event(), []

    async def scenario() -> None:
        turns = ClaimExecutor(1)
        until = asyncio.get_running_loop().time() + 120
        assert turns.worth_waiting(5.0) == 0.0

        def hang() -> str:
            begun.append(threading.current_thread().name)
            gate.wait(60)
            return "done"

        running = asyncio.create_task(turns.run("u1", "preparing", None, hang, until))
        await eventually_async(lambda: begun)
        queued = asyncio.create_task(turns.run("u2", "preparing", None, lambda: begun.append("u2"), until))
        await eventually_async(lambda: len(turns.in_flight) == 2)
        turns.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await queued
        gate.set()
        assert await running == "done"
        assert len(begun) == 1 and begun[0].startswith("claims"), "threads are named for who looks at a hung agent"

    asyncio.run(scenario())


def test_what_fails_when_its_caller_has_left_is_no_unhandled_error(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    gc.collect()  # what earlier tests left unhandled is told now
    caplog.clear()

    def fail() -> None:
        gate.wait(60)
        raise ValueError("late")

    async def scenario() -> None:
        turns = ClaimExecutor(1)
        with pytest.raises(RetryableError, match="still preparing it"):
            await turns.run("u", "preparing", None, fail, asyncio.get_running_loop().time() + 0.05)
        gate.set()
        await eventually_async(lambda: not turns.in_flight)
        gc.collect()
        turns.close()

    asyncio.run(scenario())
    assert not caplog.records


FATES = ["good", "permanent", "retryable", "bug", "gone", "replaced", "pending", "early", "no name"]


@given(
    asked=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(FATES)), max_size=12),
    twice=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_the_claims_that_were_asked_for_are_answered(
    node: Node, asked: list[tuple[int, str]], twice: bool
) -> None:
    fates = dict(asked)
    node.claims.claims.clear()
    node.claims.errors.clear()
    node.devices.raises.clear()
    for number, fate in fates.items():
        name, uid = f"c{number}", f"uid-{number}"
        node.claims.add(name, "another" if fate == "replaced" else uid)
        match fate:
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
                node.claims.errors[name] = [EarlyError()]
    claims = [
        ("default", f"C {number}" if fates[number] == "no name" else f"c{number}", f"uid-{number}")
        for number, _ in asked
    ]

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call("prepare", claims * (2 if twice else 1))
            assert set(answer.claims) == {f"uid-{number}" for number in fates}
            for number, fate in fates.items():
                one = answer.claims[f"uid-{number}"]
                assert bool(one.error) != bool(one.devices)
                assert bool(one.devices) == (fate in ("good", "early")), (fate, one.error)

    asyncio.run(scenario())


def test_a_uid_under_two_names_is_refused_and_its_neighbour_prepared(node: Node, run: Run) -> None:
    node.claims.add("a", "u")
    node.claims.add("b", "v")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            answer = await driver.call(
                "prepare", [("default", "a", "u"), ("default", "z", "u"), ("default", "a", "u"), ("default", "b", "v")]
            )
            assert set(answer.claims) == {"u", "v"}
            assert "two names" in answer.claims["u"].error
            assert answer.claims["v"].devices

    run(scenario())


def test_the_budget_is_well_below_the_kubelets() -> None:
    assert service.BUDGET_S + 2 * service.SPARE_S < 45
