"""Locks by name: a claim's and its devices', so that claims which share nothing never wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager


class NamedLocks:
    """A lock for each name, made when somebody wants it and forgotten when nobody does."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, names: Iterable[str]) -> Iterator[None]:
        """Hold all the names; taken in sorted order, so that two callers never wait for each other."""
        with ExitStack() as stack:
            for name in sorted(set(names)):
                stack.enter_context(self._hold_one(name))
            yield

    @contextmanager
    def _hold_one(self, name: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(name) or (threading.Lock(), 0)
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                _, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = (lock, users - 1)
