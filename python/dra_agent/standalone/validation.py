"""Validation of applied objects, away from the event loop and with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dra_agent.errors import RetryableError
from dra_agent.standalone.ports import Object

VALIDATION_TIMEOUT_S = 30.0
"""For all objects of one request, the time that it waits for earlier requests included."""


class Validator:
    """One thread that validates; the event loop goes on meanwhile."""

    def __init__(self, validate: Callable[[Object], list[str]], *, timeout: float = VALIDATION_TIMEOUT_S) -> None:
        """`validate` returns what is wrong with an object; `timeout` is in seconds."""
        self._validate = validate
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="validation")

    async def problems(self, values: Sequence[Object]) -> list[str]:
        """Return what is wrong with the objects.

        Raises:
            RetryableError: the deadline passed.
        """
        found: list[str] = []
        try:
            async with asyncio.timeout(self._timeout):
                for value in values:
                    found += await asyncio.get_running_loop().run_in_executor(self._thread, self._validate, value)
        except TimeoutError:
            raise RetryableError(
                f"the objects could not be validated within {self._timeout:.0f} s",
                hint="apply fewer objects at a time, or objects with simpler selectors",
            ) from None
        return found

    def stop(self) -> None:
        """Begin no further validation; one that is running ends by its own budget."""
        self._thread.shutdown(wait=False, cancel_futures=True)
