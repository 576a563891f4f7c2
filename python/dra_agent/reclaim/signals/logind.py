"""systemd-logind: an orderly shutdown of the host, delayed until claims are released or logind's timeout.

https://systemd.io/INHIBITOR_LOCKS: the holder of a "delay" lock when PrepareForShutdown(true) is sent has
InhibitDelayMaxSec to close it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import Treatment
from dra_agent.reclaim.signal import Signal, SignalSink, SourceError, treated
from dra_agent.reclaim.signals.dbus import Bus
from dra_agent.reclaim.signals.polling import PollSchedule

if TYPE_CHECKING:
    from jeepney import Message

log = logging.getLogger(__name__)

LOGIND = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
CHECK_INTERVAL_S = 30.0
"""Seconds between two checks of logind and its state; signals arrive in between."""
POLL_INTERVAL_S = 1.0
_MAX_INHIBIT_DELAY = timedelta(hours=1)


class LogindSource:
    """logind on the system's D-Bus."""

    names = ("logind",)

    def __init__(
        self,
        address: str,
        *,
        make_schedule: Callable[[float], PollSchedule] = PollSchedule,
        treatment: Treatment = "notice",
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        self._address = address
        self._schedule = make_schedule(POLL_INTERVAL_S)
        self._now = now
        self._treatment = treatment
        self._lock: int | None = None
        self._shutdown: datetime | None = None

    @property
    def delays(self) -> bool:
        """Whether a shutdown would wait for this agent now."""
        return self._lock is not None

    async def run(self, sink: SignalSink) -> None:
        """Stay connected, and report a shutdown of the host."""
        while True:
            bus: Bus | None = None
            try:
                bus = await Bus.open(self._address)
                await self._follow(bus, sink)
            except SourceError as error:
                sink.failed("logind", str(error))
                wait = self._schedule.after_failure(None)
            finally:
                self._release_lock()
                if bus is not None:
                    bus.close()
            await asyncio.sleep(wait)

    async def released(self) -> None:
        """Release the lock, so that the shutdown continues."""
        if self._shutdown is not None and self._lock is not None:
            self._release_lock()
            log.info("every claim is released: the shutdown need not wait", extra={"source": "logind"})

    async def _follow(self, bus: Bus, sink: SignalSink) -> None:
        # By its unique name: any process may send a signal of this name straight to this connection.
        owner = await bus.owner(LOGIND)
        bus.accept(owner)
        await bus.watch(
            f"type='signal',sender='{LOGIND}',path='{PATH}',interface='{MANAGER}',member='PrepareForShutdown'"
        )
        await bus.watch(
            "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',"
            f"member='NameOwnerChanged',arg0='{LOGIND}'"
        )
        while True:
            # Polled too, so that a lost signal is detected late instead of never.
            await self._report(bus, sink, await _property(bus, "PreparingForShutdown", bool))
            self._schedule.after_success()
            signal = await bus.signal(CHECK_INTERVAL_S)
            while signal is not None:
                preparing = _meaning(signal, owner)
                if preparing is not None:
                    await self._report(bus, sink, preparing)
                signal = await bus.signal(CHECK_INTERVAL_S)

    async def _report(self, bus: Bus, sink: SignalSink, preparing: bool) -> None:
        if not preparing:
            self._shutdown = None
            if self._lock is None:
                self._lock = await _inhibit(bus)
            sink.observed("logind", ())
            return
        if self._shutdown is None:
            delay = timedelta(microseconds=await _property(bus, "InhibitDelayMaxUSec", int))
            self._shutdown = self._now() + min(delay, _MAX_INHIBIT_DELAY)
        signal = treated(Signal("logind", "notice", "shutdown", "the host shuts down", self._shutdown), self._treatment)
        sink.observed("logind", () if signal is None else (signal,))

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _meaning(signal: Message, owner: str) -> bool | None:
    """Return whether a signal announces a shutdown; raises SourceError if logind stopped or restarted."""
    from jeepney import HeaderFields

    fields = signal.header.fields
    sender, member = fields.get(HeaderFields.sender), fields.get(HeaderFields.member)
    if sender == "org.freedesktop.DBus" and member == "NameOwnerChanged":
        raise SourceError("logind was restarted")
    if sender != owner or member != "PrepareForShutdown" or fields.get(HeaderFields.interface) != MANAGER:
        return None
    if len(signal.body) != 1 or not isinstance(signal.body[0], bool):
        raise SourceError("PrepareForShutdown has no boolean argument")
    return signal.body[0]


async def _inhibit(bus: Bus) -> int:
    from jeepney import DBusAddress, new_method_call
    from jeepney.fds import FileDescriptor

    address = DBusAddress(PATH, LOGIND, MANAGER)
    body = ("shutdown", "dra-agent", "releases the claims of this host", "delay")
    response = await bus.call(new_method_call(address, "Inhibit", "ssss", body))
    if len(response) != 1 or not isinstance(response[0], FileDescriptor):
        raise SourceError("Inhibit: logind returned no lock")
    descriptor: int = response[0].to_raw_fd()
    os.set_inheritable(descriptor, False)
    return descriptor


async def _property(bus: Bus, name: str, kind: type) -> Any:
    from jeepney import DBusAddress, Properties

    response = await bus.call(Properties(DBusAddress(PATH, LOGIND, MANAGER)).get(name))
    value = response[0][1] if len(response) == 1 and isinstance(response[0], tuple) and len(response[0]) == 2 else None
    if type(value) is not kind:
        raise SourceError(f"{name} has an unexpected type")
    return value
