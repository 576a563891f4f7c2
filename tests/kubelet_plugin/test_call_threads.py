"""Calls with one claim are served on their own threads, without giving up what the event loop ensures."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from dra_agent import after_response
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.kubelet_plugin import handlers, late_response, plugin, service
from dra_agent.kubelet_plugin.call_watchdog import CallWatchdog
from eventually import DEADLINE_S, eventually, eventually_async
from kubelet_plugin.conftest import Node, Run
from kubelet_plugin.test_health_stream import FakeHealth, watch

CLAIM_C = ("default", "c", "u")
SHORT_BUDGET_S = 1.0
"""For calls that end before their work. On a slow machine, too, the work begins within it."""


def test_a_claim_is_read_and_prepared_on_the_thread_of_its_call(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.add("c", "u")
    threads: list[str] = []

    def record(*_: object) -> list[ClaimDevice]:
        threads.append(threading.current_thread().name)
        return []

    on_thread = node.claims.claim_on_thread

    def read(namespace: str, name: str, timeout: float) -> Any:
        record()
        return on_thread(namespace, name, timeout)

    monkeypatch.setattr(node.claims, "claim_on_thread", read)
    monkeypatch.setattr(node.devices, "prepare", record)
    monkeypatch.setattr(node.devices, "unprepare", record)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            await driver.call("prepare", [CLAIM_C])
            assert len(threads) == 2 and len(set(threads)) == 1 and threads[0].startswith("calls")
            await driver.call("unprepare", [CLAIM_C])
            assert threads[2].startswith("calls")

    run(scenario())


@pytest.mark.parametrize("possible", [True, False])
@pytest.mark.parametrize("method", ["prepare", "unprepare"])
def test_a_call_that_hangs_has_a_response_at_its_deadline(
    node: Node,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    method: str,
    possible: bool,
) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()
    if not possible:
        monkeypatch.setattr(late_response, "is_possible", lambda context: False)

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            response = await driver.call(method, [CLAIM_C], timeout=DEADLINE_S)
            assert f"still {method[:-1]}ing it; the kubelet will retry" in response.claims["u"].error
            assert len(plugin.in_flight) == 1, "the work continues"
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", DEADLINE_S)
            gate.set()
            await eventually_async(lambda: not plugin.in_flight)
            assert not (await driver.call(method, [CLAIM_C])).claims["u"].error

    run(scenario())
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in capfd.readouterr().err


def test_this_version_of_grpc_has_late_responses(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node.claims.add("c", "u")
    found: list[bool] = []
    is_possible = late_response.is_possible

    def check(context: Any) -> bool:
        found.append(is_possible(context))
        return found[-1]

    monkeypatch.setattr(late_response, "is_possible", check)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices

    run(scenario())
    assert found == [True]


def test_calls_that_hang_leave_threads_for_all_others(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MAX_THREADS", 3)
    for number in range(3):
        node.claims.add(f"hung{number}", f"uid-{number}")
        node.devices.gates[f"uid-{number}"] = threading.Event()
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.registered() as (plugin, driver), node.kubelet() as kubelet:
            hung = [("default", f"hung{number}", f"uid-{number}") for number in range(3)]
            calls = [asyncio.create_task(driver.call("prepare", [claim])) for claim in hung]
            await eventually_async(lambda: len(node.devices.calls) == 3)
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error
            await kubelet.driver()
            assert len(plugin.in_flight) == 3
            assert plugin.executor.begin("v", "preparing") is None, "no more threads of calls may hang"
            for gate in node.devices.gates.values():
                gate.set()
            assert all([(await call).claims for call in calls])

    run(scenario())


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "one pool"])
def test_many_calls_that_hang_leave_threads_for_registration_and_health(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch, pools: bool
) -> None:
    if not pools:  # a version of gRPC that does not read experimental_thread_pool
        monkeypatch.setattr(handlers, "OnPool", lambda handle, pool: handle)
    gate = threading.Event()
    for number in range(plugin.MAX_THREADS - 1):
        node.claims.add(f"c{number}", f"uid-{number}")
        node.devices.gates[f"uid-{number}"] = gate

    async def scenario() -> None:
        async with node.registered(health=FakeHealth()) as (_, driver), node.kubelet() as kubelet:
            hung = [("default", f"c{number}", f"uid-{number}") for number in range(plugin.MAX_THREADS - 1)]
            calls = [asyncio.create_task(driver.call("prepare", [claim])) for claim in hung]
            await eventually_async(lambda: len(node.devices.calls) == len(hung))
            other = await kubelet.driver()
            assert not (await other.call("unprepare", [CLAIM_C])).claims["u"].error
            stream = watch(other)
            assert (await asyncio.wait_for(stream.read(), DEADLINE_S)).devices
            stream.cancel()
            gate.set()
            assert all([(await call).claims for call in calls])

    run(scenario())


class PanicError(BaseException):
    """As a panic of Rust code (pyo3.PanicException), which is not a subclass of Exception."""


@pytest.mark.parametrize("claims", [[CLAIM_C], [CLAIM_C, ("default", "d", "v")]], ids=["thread", "event loop"])
def test_a_panic_is_the_error_of_its_claim(node: Node, run: Run, claims: list[tuple[str, str, str]]) -> None:
    node.claims.add("c", "u")
    node.claims.add("d", "v", device="gpu-1")
    node.devices.raises["u"] = PanicError("index out of bounds")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            response = await driver.call("prepare", claims, timeout=DEADLINE_S)
            assert "unexpected PanicError: index out of bounds" in response.claims["u"].error
            assert all(response.claims[uid].devices for _, _, uid in claims[1:])
            del node.devices.raises["u"]
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices

    run(scenario())


def test_a_read_that_ends_after_the_response_is_not_repeated(
    node: Node,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()

    def read(*_: object) -> None:
        assert gate.wait(DEADLINE_S)

    monkeypatch.setattr(node.claims, "claim_on_thread", read)

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", SHORT_BUDGET_S)
            assert (
                "still preparing it" in (await driver.call("prepare", [CLAIM_C], timeout=DEADLINE_S)).claims["u"].error
            )
            monkeypatch.setattr(service, "CALL_TIMEOUT_S", DEADLINE_S)
            gate.set()
            await eventually_async(lambda: not plugin.in_flight)
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices

    run(scenario())
    assert node.claims.tries == ["c"], "only the second call reads it on the event loop"
    assert len([record for record in caplog.records if record.message.startswith("call failed")]) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that the kernel has no room for; a name stands for all that start with it."""
    names: set[str] = set()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return names


def test_a_server_survives_that_no_thread_can_be_started(node: Node, run: Run, no_threads: set[str]) -> None:
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.plugin(), node.kubelet() as kubelet:
            no_threads.update(("calls", "kubelet"))
            driver = await kubelet.driver()
            assert (await driver.call("prepare", [CLAIM_C], timeout=DEADLINE_S)).claims["u"].devices
            no_threads.clear()
            assert not (await driver.call("unprepare", [CLAIM_C], timeout=DEADLINE_S)).claims["u"].error

    run(scenario())


def test_a_call_without_deadline_thread_leaves_its_claim_free(node: Node, run: Run, no_threads: set[str]) -> None:
    node.claims.add("c", "u")
    no_threads.add("call deadlines")

    async def scenario() -> None:
        async with node.registered() as (plugin, driver):
            assert "no room for another thread" in (await driver.call("prepare", [CLAIM_C])).claims["u"].error
            assert not plugin.in_flight and not node.devices.calls
            no_threads.clear()
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices

    run(scenario())


class ThrottledError(RetryableError):
    retry_after = 3600.0


def test_a_throttled_read_is_not_repeated_at_once_on_the_event_loop(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    node.claims.errors["c"] = [ThrottledError("429")]

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert "cannot be read: 429" in (await driver.call("prepare", [CLAIM_C])).claims["u"].error
            assert node.claims.tries == ["c"]

    run(scenario())


def test_an_error_of_joined_work_is_the_error_of_both_calls(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    gate = node.devices.gates["u"] = threading.Event()
    node.devices.raises["u"] = RetryableError("no such profile")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            first = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: node.devices.calls)
            second = asyncio.create_task(driver.call("prepare", [CLAIM_C]))
            await eventually_async(lambda: len(node.claims.tries) == 2)
            await driver.call("prepare", [("default", "NO NAME", "v")])  # the event loop has taken the second call
            gate.set()
            for call in (first, second):
                assert (await call).claims["u"].error == "no such profile"

    run(scenario())


def test_the_watchdog_calls_late_ones_and_forgets_others() -> None:
    watchdog, late = CallWatchdog(), []
    ended = threading.Event()
    now_s = Deadline.of(0).at
    watchdog.add(now_s + 3600, lambda: late.append("far"))
    removed = watchdog.add(now_s + DEADLINE_S, lambda: late.append("removed"))
    assert watchdog.remove(removed) and not watchdog.remove(removed)
    called = watchdog.add(now_s + 0.2, ended.set)
    assert ended.wait(DEADLINE_S)
    assert not watchdog.remove(called), "the late call has the response"
    assert late == []


def test_the_watchdog_survives_that_a_response_fails_or_has_no_thread(no_threads: set[str]) -> None:
    watchdog = CallWatchdog()
    ended = threading.Event()

    def fail() -> None:
        raise ValueError("the call was canceled")

    no_threads.add("late call")
    for late in (fail, ended.set):
        watchdog.add(Deadline.of(0).at, late)
    assert ended.wait(DEADLINE_S)


def test_the_watchdog_has_no_thread_without_calls() -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "call deadlines" and thread not in before]

    before = [thread for thread in threading.enumerate() if thread.name == "call deadlines"]
    watchdog, ended = CallWatchdog(), threading.Event()
    for _ in range(2):
        watchdog.add(Deadline.of(0).at, ended.set)
        assert ended.wait(DEADLINE_S)
        eventually(lambda: not threads())
        ended.clear()


def test_a_call_has_its_response_before_work_that_may_follow_it(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.add("c", "u")
    may_follow, done = threading.Event(), list[str]()

    def work(name: str) -> None:
        assert may_follow.wait(DEADLINE_S)
        done.append(name)

    def prepare(*_: object) -> list[ClaimDevice]:
        after_response.later(lambda: work("first"))
        after_response.later(lambda: work("second"))
        return []

    monkeypatch.setattr(node.devices, "prepare", prepare)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            try:
                assert not (await driver.call("prepare", [CLAIM_C])).claims["u"].error
                assert done == []
            finally:
                may_follow.set()
            await eventually_async(lambda: done == ["first", "second"])

    run(scenario())


def test_work_that_may_follow_a_response_is_done_at_once_without_a_call() -> None:
    done: list[str] = []
    after_response.later(lambda: done.append("at once"))
    assert done == ["at once"]

    def call() -> str:
        after_response.later(lambda: done.append("afterwards"))
        assert done == ["at once"]
        other = threading.Thread(target=after_response.later, args=(lambda: done.append("another thread"),))
        other.start()
        other.join()
        assert done == ["at once", "another thread"]
        return "response"

    assert after_response.serve(call) == "response"
    assert done == ["at once", "another thread", "afterwards"]

    def fails() -> None:
        after_response.later(lambda: done.append("also after an error"))
        raise RetryableError("no")

    with pytest.raises(RetryableError):
        after_response.serve(fails)
    assert done[-1] == "also after an error"
    after_response.later(lambda: done.append("at once again"))
    assert done[-1] == "at once again"
