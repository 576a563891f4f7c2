"""Signals of a service: SIGTERM and SIGINT stop it, SIGHUP reloads, SIGUSR1 and SIGUSR2 do nothing.

Python runs a signal handler between two bytecodes of the main thread. Where that thread is about to enter a system call
that blocks, or is in one that is resumed, the handler never runs. So a thread of the native module receives signals
from the start, and ends the process if the event loop does not. This also works for the first
process of a container, for which the kernel ignores default actions (pid_namespaces(7)).

1. Until the event loop runs (`attach`), a stop signal ends the process at once, with exit code 0.
2. While the service starts, it has START_STOP_S to end: a step of the start may block the event loop.
3. Once it runs (`disable_exit_timer`), the event loop handles signals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dra_agent import _native
from dra_agent.supervisor import supervisor
from dra_agent.threads import no_thread

log = logging.getLogger(__name__)

START_STOP_S = 10.0
"""Seconds between a stop signal that arrives during the start and the end of the process, even if a call blocks."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OTHER_SIGNALS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_installed: Signals | None = None


class Signals:
    """The signals of this process; there is one, see `install`."""

    def __init__(self) -> None:
        # Python's own handler would raise KeyboardInterrupt wherever the main thread is.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            self._listener = _native.SignalListener(list(map(int, STOP_SIGNALS)), list(map(int, OTHER_SIGNALS)))
        except BlockingIOError as error:
            raise no_thread("signals") from error

    @contextmanager
    def attach(self, stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
        """Call `stop` and `reload` from the running event loop; stop signals leave START_STOP_S from now on."""
        loop = asyncio.get_running_loop()
        descriptor = self._listener.fileno()

        def received() -> None:
            with suppress(BlockingIOError):
                for number in os.read(descriptor, 64):
                    if number in STOP_SIGNALS:
                        stop()
                    elif number == signal.SIGHUP:
                        reload()
                    else:
                        log.warning("signal ignored", extra={"signal": signal.Signals(number).name})

        loop.add_reader(descriptor, received)
        self._listener.set_grace(START_STOP_S)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def disable_exit_timer(self) -> None:
        """Leave the end of the process after a stop signal to the event loop alone."""
        self._listener.set_grace(None)


def install() -> Signals:
    """Receive the signals of this process, from the first call to its end. Call it on the main thread."""
    global _installed
    if _installed is None:
        _installed = Signals()
    return _installed


async def run_unless(
    stopped: asyncio.Event,
    needed: Callable[[], bool],
    start: Coroutine[Any, Any, None],
    changed: Callable[[], Coroutine[Any, Any, None]],
) -> bool:
    """Run `start`, and cancel it once `stopped` is set and it is not `needed`; return True if it was completed.

    `changed` returns when `needed` may have changed. Raises the errors of `start`.
    """
    starting = supervisor().start_task("start", start, awaited=True)
    waiting = supervisor().start_task("stop", stopped.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        while not starting.done() and needed():
            change = supervisor().start_task("change", changed())
            await asyncio.wait({starting, change}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
    finally:
        waiting.cancel()
        starting.cancel()
        await asyncio.wait({starting})
    if starting.cancelled():
        return False
    starting.result()
    return True
