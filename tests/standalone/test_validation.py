"""A slow validation does not delay other requests, and ends at a deadline."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import RetryableError
from dra_agent.standalone.intake import Validator
from dra_agent.standalone.protocol import Apply, Client, ListClaims
from dra_agent.standalone.service import StandaloneService
from standalone.service_thread import HealthyDevices

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


def test_a_hanging_validation_ends_at_its_deadline() -> None:
    may_continue = threading.Event()

    async def scenario() -> None:
        validator = Validator(lambda value: [str(may_continue.wait(LIMIT_S))], timeout=0.01)
        try:
            with pytest.raises(RetryableError, match="could not be validated within"):
                await validator.problems([{}])
        finally:
            may_continue.set()
            validator.stop()

    asyncio.run(scenario())
