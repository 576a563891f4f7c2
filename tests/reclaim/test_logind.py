"""An orderly shutdown, on a D-Bus daemon of the test's own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_agent.reclaim.signals.logind import LogindSource
from eventually import eventually
from reclaim.fake_logind import Daemon, FakeLogind, Impostor, connections, stranger
from reclaim.recording_sink import Listener, is_due, listen, quick


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.stop()


@pytest.fixture
def logind(daemon: Daemon) -> Iterator[FakeLogind]:
    logind = FakeLogind(daemon.address, delay=7.0)
    yield logind
    logind.stop()


def test_a_shutdown_is_a_notice_and_waits_until_claims_are_released(daemon: Daemon, logind: FakeLogind) -> None:
    source, began = LogindSource(daemon.address, pace=quick), datetime.now(UTC)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        assert source.delays and logind.locked()
        assert logind.inhibited == [("shutdown", "dra-agent", "releases the claims of this host", "delay")]
        logind.shut_down()
        await listener.until(lambda: listener.now("logind"))
        assert logind.locked()
        await source.released()
        await listener.until(lambda: not logind.locked())

    (reading,) = listen(source, story).now("logind") or ()
    assert reading.kind == "notice" and is_due(reading.deadline, 7, began)


def test_a_shutdown_that_is_called_off_is_over_and_the_next_one_waits_again(daemon: Daemon, logind: FakeLogind) -> None:
    source = LogindSource(daemon.address, pace=quick)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        logind.shut_down()
        await listener.until(lambda: listener.now("logind"))
        await source.released()
        logind.shut_down(False)
        await listener.until(lambda: listener.now("logind") == ())
        assert logind.locked() and len(logind.inhibited) == 2

    listen(source, story)


def test_releasing_claims_without_a_shutdown_keeps_the_lock(daemon: Daemon, logind: FakeLogind) -> None:
    source = LogindSource(daemon.address, pace=quick)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        await source.released()
        assert source.delays

    listen(source, story)
    assert not source.delays
    eventually(lambda: not logind.locked())  # the daemon, which passed the lock on, closes its own copy later


def test_an_agent_that_comes_while_the_host_shuts_down_says_so(daemon: Daemon, logind: FakeLogind) -> None:
    logind.preparing = True

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind"))

    assert listen(LogindSource(daemon.address, pace=quick), story).notices()


def test_the_signal_of_a_stranger_is_not_believed(daemon: Daemon, logind: FakeLogind) -> None:
    async def story(listener: Listener) -> None:
        before = set(await asyncio.to_thread(connections, daemon.address))
        assert len(before) == 2  # logind's and ours
        await listener.until(lambda: listener.now("logind") == ())
        for name in before:
            await asyncio.to_thread(stranger, daemon.address, name)
        await asyncio.sleep(0.1)
        assert listener.now("logind") == () and not listener.failures
        logind.shut_down()
        await listener.until(lambda: listener.now("logind"))

    async def connected(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        await story(listener)

    listen(LogindSource(daemon.address, pace=quick), connected)


def test_signals_of_a_stranger_break_neither_the_connection_nor_the_lock(daemon: Daemon, logind: FakeLogind) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        before = set(await asyncio.to_thread(connections, daemon.address))
        for name in before:
            await asyncio.to_thread(stranger, daemon.address, name, 500)
        # What comes after them on the same connection is read after them.
        logind.shut_down()
        await listener.until(lambda: listener.now("logind"))
        assert not listener.failures and logind.locked() and len(logind.inhibited) == 1

    listen(LogindSource(daemon.address, pace=quick), story)


def test_a_logind_that_is_restarted_is_asked_again(daemon: Daemon) -> None:
    first = FakeLogind(daemon.address)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        first.stop()
        await listener.until(lambda: listener.failures)
        second = FakeLogind(daemon.address)
        try:
            await listener.until(second.locked)
            second.shut_down()
            await listener.until(lambda: listener.now("logind"))
        finally:
            second.stop()

    listen(LogindSource(daemon.address, pace=quick), story)


def test_a_refused_lock_says_so(daemon: Daemon, logind: FakeLogind) -> None:
    logind.refuse = True

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.failures)

    heard = listen(LogindSource(daemon.address, pace=quick), story)
    assert "Inhibit" in heard.failures[0][1] and "AccessDenied" in heard.failures[0][1] and not heard.seen_


def test_a_signal_that_does_not_say_whether_is_no_notice(daemon: Daemon, logind: FakeLogind) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())
        logind.preparing = False
        logind.shut_down("yes", "s")
        logind.preparing = False
        await listener.until(lambda: listener.failures)
        await listener.until(lambda: listener.now("logind") == ())

    assert not listen(LogindSource(daemon.address, pace=quick), story).notices()


def test_a_host_without_dbus_is_not_heard_and_comes_back(tmp_path: Path) -> None:
    address = f"unix:path={tmp_path}/bus"

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.failures)
        daemon = await asyncio.to_thread(Daemon, tmp_path)
        logind = FakeLogind(address)
        try:
            await listener.until(lambda: listener.now("logind") == ())
        finally:
            logind.stop()
            daemon.stop()

    assert "no connection" in listen(LogindSource(address, pace=quick), story).failures[0][1]


@pytest.mark.parametrize("says", [b"", b"ERROR\r\n", b"\xff\xfe\r\n", b"OK 12\r\nAGREE_UNIX_FD\r\n" + b"\0" * 64])
def test_what_is_no_dbus_daemon_is_unknown(tmp_path: Path, says: bytes) -> None:
    impostor = Impostor(tmp_path / "bus", says)

    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.failures)

    heard = listen(LogindSource(f"unix:path={tmp_path}/bus", pace=quick), story)
    impostor.stop()
    assert not heard.seen_


def test_an_address_that_is_none_is_unknown() -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: len(listener.failures) > 1)

    for address in ("tcp:host=127.0.0.1", "nonsense", "unix:"):
        assert "not an address" in listen(LogindSource(address, pace=quick), story).failures[0][1]


def test_sockets_are_not_left_open(daemon: Daemon, logind: FakeLogind) -> None:
    async def story(listener: Listener) -> None:
        await listener.until(lambda: listener.now("logind") == ())

    listen(LogindSource(daemon.address, pace=quick), story)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(daemon.address.removeprefix("unix:path="))
    eventually(lambda: len(connections(daemon.address)) == 1)
