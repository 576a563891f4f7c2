"""Shutdowns of systemd-logind, on a private D-Bus daemon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_agent.reclaim.signals.dbus import Bus
from dra_agent.reclaim.signals.logind import LogindSource
from eventually import DEADLINE_S, eventually
from reclaim.fake_logind import Daemon, FakeBus, FakeLogind, connections, send_forged_signals
from reclaim.recording_sink import RecordingSink, fast_schedule, is_due, run_source


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


def test_a_shutdown_is_a_notice_and_is_delayed_until_the_release(daemon: Daemon, logind: FakeLogind) -> None:
    source, start = LogindSource(daemon.address, make_schedule=fast_schedule), datetime.now(UTC)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        assert source.delays and logind.locked()
        assert logind.inhibited == [("shutdown", "dra-agent", "releases the claims of this host", "delay")]
        logind.shut_down()
        await sink.wait_until(lambda: sink.latest("logind"))
        assert logind.locked()
        await source.released()
        await sink.wait_until(lambda: not logind.locked())

    (signal,) = run_source(source, scenario).latest("logind") or ()
    assert signal.kind == "notice" and is_due(signal.deadline, 7, start)


def test_after_a_canceled_shutdown_the_next_one_is_delayed_again(daemon: Daemon, logind: FakeLogind) -> None:
    source = LogindSource(daemon.address, make_schedule=fast_schedule)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        logind.shut_down()
        await sink.wait_until(lambda: sink.latest("logind"))
        await source.released()
        logind.shut_down(False)
        await sink.wait_until(lambda: sink.latest("logind") == ())
        assert logind.locked() and len(logind.inhibited) == 2

    run_source(source, scenario)


def test_a_release_without_a_shutdown_keeps_the_lock(daemon: Daemon, logind: FakeLogind) -> None:
    source = LogindSource(daemon.address, make_schedule=fast_schedule)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        await source.released()
        assert source.delays

    run_source(source, scenario)
    assert not source.delays
    eventually(lambda: not logind.locked())  # the daemon passed the lock on, and closes its own copy later


def test_an_agent_that_starts_during_a_shutdown_reports_it(daemon: Daemon, logind: FakeLogind) -> None:
    logind.preparing = True

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind"))

    assert run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario).notices()


def test_a_forged_signal_is_ignored(daemon: Daemon, logind: FakeLogind) -> None:
    async def scenario(sink: RecordingSink) -> None:
        before = set(await asyncio.to_thread(connections, daemon.address))
        assert len(before) == 2  # of logind and of the agent
        await sink.wait_until(lambda: sink.latest("logind") == ())
        for name in before:
            await asyncio.to_thread(send_forged_signals, daemon.address, name)
        # Later messages on the same connection are read after them.
        logind.shut_down(False)
        await sink.wait_until(lambda: len(sink.signals["logind"]) > 1 and sink.latest("logind") == ())
        assert not sink.notices() and not sink.failures
        logind.shut_down()
        await sink.wait_until(lambda: sink.latest("logind"))

    async def after_connect(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        await scenario(sink)

    run_source(LogindSource(daemon.address, make_schedule=fast_schedule), after_connect)


def test_many_forged_signals_break_neither_connection_nor_lock(daemon: Daemon, logind: FakeLogind) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        before = set(await asyncio.to_thread(connections, daemon.address))
        for name in before:
            await asyncio.to_thread(send_forged_signals, daemon.address, name, 500)
        # Later messages on the same connection are read after them.
        logind.shut_down()
        await sink.wait_until(lambda: sink.latest("logind"))
        assert not sink.failures and logind.locked() and len(logind.inhibited) == 1

    run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario)


def test_a_restarted_logind_is_used_again(daemon: Daemon) -> None:
    first = FakeLogind(daemon.address)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        first.stop()
        await sink.wait_until(lambda: sink.failures)
        second = FakeLogind(daemon.address)
        try:
            await sink.wait_until(second.locked)
            second.shut_down()
            await sink.wait_until(lambda: sink.latest("logind"))
        finally:
            second.stop()

    run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario)


def test_a_refused_lock_is_an_error(daemon: Daemon, logind: FakeLogind) -> None:
    logind.refuse = True

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)

    recorded = run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario)
    assert "Inhibit" in recorded.failures[0][1] and "AccessDenied" in recorded.failures[0][1] and not recorded.signals


def test_a_response_without_a_lock_is_an_error(daemon: Daemon, logind: FakeLogind) -> None:
    logind.returns_no_lock = True

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)

    recorded = run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario)
    assert recorded.failures[0] == ("logind", "Inhibit: logind returned no lock") and not recorded.signals


def test_a_malformed_signal_is_not_a_notice(daemon: Daemon, logind: FakeLogind) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())
        logind.preparing = False
        logind.shut_down("yes", "s")
        logind.preparing = False
        await sink.wait_until(lambda: sink.failures)
        await sink.wait_until(lambda: sink.latest("logind") == ())

    assert not run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario).notices()


def test_a_host_without_dbus_is_an_error_until_it_starts(tmp_path: Path) -> None:
    address = f"unix:path={tmp_path}/bus"

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)
        daemon = await asyncio.to_thread(Daemon, tmp_path)
        logind = FakeLogind(address)
        try:
            await sink.wait_until(lambda: sink.latest("logind") == ())
        finally:
            logind.stop()
            daemon.stop()

    assert "no connection" in run_source(LogindSource(address, make_schedule=fast_schedule), scenario).failures[0][1]


@pytest.mark.parametrize("response", [b"", b"ERROR\r\n", b"\xff\xfe\r\n", b"OK 12\r\nAGREE_UNIX_FD\r\n" + b"\0" * 64])
def test_an_invalid_dbus_daemon_is_an_error(tmp_path: Path, response: bytes) -> None:
    fake_bus = FakeBus(tmp_path / "bus", response)

    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.failures)

    recorded = run_source(LogindSource(f"unix:path={tmp_path}/bus", make_schedule=fast_schedule), scenario)
    fake_bus.stop()
    assert not recorded.signals


def test_an_invalid_address_is_an_error() -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: len(sink.failures) > 1)

    for address in ("tcp:host=127.0.0.1", "nonsense", "unix:"):
        assert (
            "not an address" in run_source(LogindSource(address, make_schedule=fast_schedule), scenario).failures[0][1]
        )


def test_sockets_are_closed(daemon: Daemon, logind: FakeLogind) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("logind") == ())

    run_source(LogindSource(daemon.address, make_schedule=fast_schedule), scenario)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(daemon.address.removeprefix("unix:path="))
    eventually(lambda: len(connections(daemon.address)) == 1)


def test_signals_of_other_senders_are_not_queued() -> None:
    from jeepney import DBusAddress, HeaderFields, new_signal

    def from_sender(sender: str, serial: int) -> bytes:
        message = new_signal(
            DBusAddress("/org/freedesktop/login1", interface="a.b"), "PrepareForShutdown", "b", (True,)
        )
        message.header.fields[HeaderFields.sender] = sender
        data: bytes = message.serialise(serial)
        return data

    async def main() -> None:
        ours, daemons = socket.socketpair()
        ours.setblocking(False)
        bus = Bus(ours)
        bus.accept(":1.7")
        asyncio.get_running_loop().add_reader(ours, bus.on_readable)
        with daemons:
            for serial in range(1, 201):
                daemons.sendall(from_sender(":1.666", serial))
            daemons.sendall(from_sender(":1.7", 201))
            received = await bus.signal(DEADLINE_S)
            bus.close()
        assert received is not None and received.header.fields[HeaderFields.sender] == ":1.7"

    asyncio.run(main())
