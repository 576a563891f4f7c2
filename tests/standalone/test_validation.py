"""A slow validation does not delay other requests, and ends at a deadline."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError
from dra_agent.standalone import intake
from dra_agent.standalone import requests as requests_module
from dra_agent.standalone.intake import Validator
from dra_agent.standalone.protocol import Apply, Client, ListClaims
from dra_agent.standalone.service import StandaloneService
from standalone.service_thread import HealthyDevices, ServiceThread

LIMIT_S = 60.0


def test_requests_are_answered_while_an_object_is_validated(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any
) -> None:
    began, may_continue = threading.Event(), threading.Event()

    def validate(value: dict[str, Any]) -> list[str]:
        began.set()
        return [] if may_continue.wait(LIMIT_S) else ["no other request was answered"]

    async def scenario() -> None:
        service = StandaloneService(
            tmp_path,
            node="n",
            driver="d",
            devices=HealthyDevices(),
            preparer=preparer,
            allocator=devices,
            validate=validate,
        )
        await service.start()
        loop = asyncio.get_running_loop()

        def send_request(request: Any) -> Any:
            with Client(service.socket) as client:
                return client.call(request)

        with ThreadPoolExecutor(2) as clients:
            try:
                applied = loop.run_in_executor(clients, send_request, Apply([claim("a")]))
                await loop.run_in_executor(None, began.wait, LIMIT_S)
                assert await loop.run_in_executor(clients, send_request, ListClaims()) == []
                may_continue.set()
                assert [result["action"] for result in await applied] == ["created"]
            finally:
                may_continue.set()
        await service.stop()

    asyncio.run(asyncio.wait_for(scenario(), 2 * LIMIT_S))


@pytest.mark.parametrize("limit", ["VALIDATION_TIMEOUT_S", "RESPOND_AFTER_S"])
def test_a_hanging_validation_ends_before_the_client_gives_up(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(requests_module, limit, 0.01)
    may_continue = threading.Event()
    agent = ServiceThread(tmp_path, preparer, devices, lambda value: [str(may_continue.wait(LIMIT_S))])
    try:
        with (
            Client(agent.path) as client,
            pytest.raises(RetryableError, match=r"could not be validated within .*; apply fewer objects"),
        ):
            client.call(Apply([claim("a")]), timeout_s=LIMIT_S)
    finally:
        may_continue.set()
        agent.stop()


def test_a_client_that_gives_up_names_the_command_that_shows_what_was_stored(
    tmp_path: Path, preparer: Any, devices: Any, claim: Any
) -> None:
    may_continue = threading.Event()
    agent = ServiceThread(tmp_path, preparer, devices, lambda value: [str(may_continue.wait(LIMIT_S))])
    try:
        with Client(agent.path) as client, pytest.raises(RetryableError, match="did not respond.*claim list"):
            client.call(Apply([claim("a")]), timeout_s=0.05)
    finally:
        may_continue.set()
        agent.stop()


@pytest.mark.parametrize(("seconds_each", "turns"), [(0.0, 1), (0.02, 34), (1.0, 100)])
def test_many_objects_are_validated_in_few_turns(
    monkeypatch: pytest.MonkeyPatch, seconds_each: float, turns: int
) -> None:
    submitted: list[object] = []
    now = [0.0]

    class CountingExecutor(DaemonExecutor):
        def submit(self, *call: Any, **options: Any) -> Any:
            submitted.append(call)
            return super().submit(*call, **options)

    def validate(value: dict[str, Any]) -> list[str]:
        now[0] += seconds_each
        return [f"object {value['number']}"]

    monkeypatch.setattr(intake, "DaemonExecutor", CountingExecutor)
    validator = Validator(validate, lambda: now[0])
    values = [{"number": number} for number in range(100)]
    problems = asyncio.run(validator.problems(values, timeout_s=LIMIT_S))
    validator.stop()
    assert problems == [f"object {number}" for number in range(100)]
    assert len(submitted) == turns
