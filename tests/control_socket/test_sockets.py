"""The control socket of the host: who may connect, responses, errors, and clients that misbehave."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import stat
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tiers
from dra_agent.control_socket import protocol as protocol_module
from dra_agent.control_socket import server as server_module
from dra_agent.control_socket.protocol import Connection
from dra_agent.control_socket.server import Server
from dra_agent.errors import AgentError, BusyError, PermanentError, RetryableError, UsageError
from eventually import DEADLINE_S, eventually_async

LINE_LIMIT_BYTES = 64 * 1024


class Echo(msgspec.Struct):
    """A request of these tests."""

    text: str


async def echo(line: bytes) -> Any:
    """Return the text of the request, or fail as the text requests."""
    text = msgspec.json.decode(line, type=Echo).text
    failures: dict[str, Exception] = {
        "retry": RetryableError("busy", where="gpu-0", hint="wait"),
        "never": PermanentError("no"),
        "wrong": UsageError("what?"),
        "bug": ZeroDivisionError("oops"),
    }
    if text in failures:
        raise failures[text]
    return {"text": text}


def connect(path: Path) -> Connection:
    return Connection(path, no_agent="no server here", hint="start one")


def ask(path: Path) -> Any:
    with connect(path) as connection:
        return connection.call(Echo("a"), timeout=60)


def run_with_server(path: Path, scenario: Callable[[], Any], handler: Callable[[bytes], Awaitable[Any]] = echo) -> Any:
    """Run a blocking scenario in a thread while the socket is served."""

    async def run() -> Any:
        server = Server(path, handler, line_limit=LINE_LIMIT_BYTES)
        await server.start()
        try:
            return await asyncio.to_thread(scenario)
        finally:
            await server.stop()

    return asyncio.run(run())


def test_responses_come_back_in_order_on_one_connection(short_path: Path) -> None:
    path = short_path / "s"

    def scenario() -> list[Any]:
        with connect(path) as connection:
            return [connection.call(Echo(text), timeout=60) for text in "abc"]

    assert run_with_server(path, scenario) == [{"text": text} for text in "abc"]
    assert not path.exists(), "the socket is removed when the server stops"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("retry", RetryableError, "gpu-0: busy; wait"),
        ("never", PermanentError, "no"),
        ("wrong", UsageError, "what"),
        ("bug", PermanentError, "internal error: ZeroDivisionError"),
    ],
)
def test_errors_are_raised_at_the_client(short_path: Path, text: str, kind: type[AgentError], message: str) -> None:
    path = short_path / "s"

    def scenario() -> None:
        with connect(path) as connection:
            with pytest.raises(kind, match=message):
                connection.call(Echo(text), timeout=60)
            assert connection.call(Echo("and on"), timeout=60) == {"text": "and on"}

    run_with_server(path, scenario)


def test_an_endless_line_is_refused_without_affecting_others(short_path: Path) -> None:
    path = short_path / "s"

    def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(path))
            try:
                client.sendall(b"x" * 1_000_000)
                response = client.makefile("rb").readline()
            except ConnectionError:
                response = b""
            if response:
                assert json.loads(response)["failure"]["family"] == "usage"
        with connect(path) as connection:
            assert connection.call(Echo("a"), timeout=60) == {"text": "a"}

    run_with_server(path, scenario)


@pytest.mark.parametrize("size", [1, LINE_LIMIT_BYTES * 3 // 4])
def test_a_client_above_the_limit_is_rejected_with_the_reason(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(protocol_module, "BUSY_TIMEOUT_S", 0.0)
    path = short_path / "s"

    def scenario() -> None:
        with connect(path) as first:
            first.call(Echo("a"), timeout=60)
            with (
                connect(path) as second,
                pytest.raises(BusyError, match=r"1 clients already; repeat the command later"),
            ):
                second.call(Echo("b" * size), timeout=60)
            assert first.call(Echo("c"), timeout=60) == {"text": "c"}

    run_with_server(path, scenario)


def test_a_rejected_client_repeats_its_request_until_it_is_served(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(protocol_module, "BUSY_TIMEOUT_S", 10 * DEADLINE_S)
    path = short_path / "s"
    others: list[Connection] = []

    def leave(pause: float) -> None:
        assert pause > 0
        others[0].close()

    monkeypatch.setattr(protocol_module, "sleep", leave)

    def scenario() -> Any:
        others.append(connect(path))
        others[0].call(Echo("a"), timeout=60)
        with connect(path) as second:
            return second.call(Echo("b"), timeout=60)

    assert run_with_server(path, scenario) == {"text": "b"}


def waiting_server(path: Path) -> tuple[Server, asyncio.Event]:
    """Return a server that waits for the event with every request but `short`, and responds whether it could."""
    event = asyncio.Event()

    async def handle(line: bytes) -> Any:
        if msgspec.json.decode(line, type=Echo).text == "short":
            return "short"
        with server.waiting() as may_wait:
            if may_wait:
                await event.wait()
            return may_wait

    server = Server(path, handle, line_limit=LINE_LIMIT_BYTES, interval_s=0.02)
    return server, event


async def request(path: Path, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(msgspec.json.encode(Echo(text)) + b"\n")
    return reader, writer


def test_requests_that_wait_leave_connections_for_others(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 6)
    monkeypatch.setattr(server_module, "MAX_WAITING", 2)
    path = short_path / "s"

    async def run() -> None:
        server, event = waiting_server(path)
        await server.start()
        try:
            waiting = [await request(path, "wait") for _ in range(2)]
            await eventually_async(lambda: server.waiting_requests == 2)
            reader, third = await request(path, "wait")
            assert json.loads(await reader.readline()) == {"result": False}, "a third one does not wait"
            for _ in range(3):
                reader, writer = await request(path, "short")
                assert json.loads(await reader.readline()) == {"result": "short"}
                writer.close()
            event.set()
            assert [json.loads(await reader.readline()) for reader, _ in waiting] == [{"result": True}] * 2
            assert server.waiting_requests == 0
            for _, writer in waiting:
                writer.close()
            third.close()
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["closed", "half closed"])
def test_a_request_waits_until_its_client_disconnects(short_path: Path, how: str) -> None:
    path = short_path / "s"

    async def run() -> None:
        server, event = waiting_server(path)
        await server.start()
        try:
            reader, writer = await request(path, "wait")
            await eventually_async(lambda: server.waiting_requests == 1)
            if how == "closed":
                writer.close()
                await eventually_async(lambda: server.waiting_requests == 0)
            else:
                writer.write_eof()  # as `socat` does after its input, and it still reads
                _, gone_writer = await request(path, "wait")
                await eventually_async(lambda: server.waiting_requests == 2)
                gone_writer.close()
                await eventually_async(lambda: server.waiting_requests == 1)
                event.set()
                assert json.loads(await reader.readline()) == {"result": True}
                writer.close()
        finally:
            await server.stop()

    asyncio.run(run())


def test_an_idle_client_is_disconnected(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_TIMEOUT_S", 0.05)
    path = short_path / "s"

    def scenario() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(path))
            return client.recv(1)

    assert run_with_server(path, scenario) == b""


@tiers.PATIENCE
def test_a_missing_response_is_a_retryable_error(short_path: Path) -> None:
    async def never_responds(line: bytes) -> Any:
        await asyncio.Event().wait()

    path = short_path / "s"

    def scenario() -> None:
        with connect(path) as connection, pytest.raises(RetryableError, match="did not respond within 0.1 s"):
            connection.call(Echo("a"), timeout=0.1)

    run_with_server(path, scenario, never_responds)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user id")
def test_requests_of_another_user_are_rejected(short_path: Path) -> None:
    short_path.chmod(0o711)
    path, received = short_path / "s", []

    async def receive(line: bytes) -> None:
        received.append(line)

    def connect_as_other_user() -> int:
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)  # even if the mode of the socket was widened
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child calls no function that takes a lock
            child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresuid(12345, 12345, 12345)
                client = socket.socket(socket.AF_UNIX)
                client.connect(str(path))
                client.sendall(b'{"text": "me"}\n')
                code = 0 if client.recv(100) == b"" else 2
            except ConnectionError:
                code = 0
            except OSError:
                code = 3
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run_with_server(path, connect_as_other_user, receive) == 0
    assert received == []


def test_a_stale_socket_is_replaced_but_no_other_file(short_path: Path) -> None:
    path = short_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert run_with_server(path, lambda: ask(path)) == {"text": "a"}
    path.write_text("mine")
    with pytest.raises(PermanentError, match="in the way"):
        run_with_server(path, lambda: None)
    assert path.read_text() == "mine"


def test_a_path_too_long_for_a_socket_is_refused(short_path: Path) -> None:
    with pytest.raises(UsageError, match="longer than 107 bytes; choose a shorter"):
        run_with_server(short_path / ("x" * 120), lambda: None)


def test_the_socket_of_a_successor_is_not_removed(short_path: Path) -> None:
    path = short_path / "s"

    async def scenario() -> None:
        old, new = (Server(path, echo, line_limit=LINE_LIMIT_BYTES) for _ in range(2))
        await old.start()
        await new.start()
        await old.stop()
        try:
            assert await asyncio.to_thread(ask, path) == {"text": "a"}
        finally:
            await new.stop()
        assert not path.exists()

    asyncio.run(scenario())


def test_without_a_server_the_error_has_the_hint(short_path: Path) -> None:
    with pytest.raises(RetryableError, match="no server here; start one"):
        connect(short_path / "s")


def test_a_stop_answers_the_request_that_is_executed(short_path: Path) -> None:
    """An idle client and a request that waits are dropped at once: the other one is answered only after them."""
    path = short_path / "s"

    async def run() -> None:
        started, finish = asyncio.Event(), asyncio.Event()

        async def handle(line: bytes) -> Any:
            if msgspec.json.decode(line, type=Echo).text == "wait":
                with server.waiting():
                    await asyncio.Event().wait()
            started.set()
            await finish.wait()
            return "done"

        server = Server(path, handle, line_limit=LINE_LIMIT_BYTES, stop_grace_s=DEADLINE_S)
        await server.start()
        executed, writer = await request(path, "execute")
        await started.wait()
        waiting, waiting_writer = await request(path, "wait")
        await eventually_async(lambda: server.waiting_requests == 1)
        idle, idle_writer = await asyncio.open_unix_connection(path)
        stopping = asyncio.create_task(server.stop())
        assert await waiting.readline() == b""
        assert await idle.readline() == b""
        assert not stopping.done()
        finish.set()
        assert json.loads(await executed.readline()) == {"result": "done"}
        assert await executed.readline() == b""
        await stopping
        for one in (writer, waiting_writer, idle_writer):
            one.close()

    asyncio.run(run())


def test_a_request_that_does_not_end_is_dropped(short_path: Path) -> None:
    path = short_path / "s"

    async def run() -> None:
        started = asyncio.Event()

        async def handle(line: bytes) -> Any:
            started.set()
            await asyncio.Event().wait()

        server = Server(path, handle, line_limit=LINE_LIMIT_BYTES, stop_grace_s=0.05)
        await server.start()
        reader, writer = await request(path, "execute")
        await started.wait()
        await server.stop()
        assert await reader.readline() == b""
        writer.close()

    asyncio.run(run())


def test_a_client_that_connects_during_stop_is_disconnected(short_path: Path) -> None:
    async def run(loop_iterations: int) -> None:
        server = Server(short_path / "s", echo, line_limit=LINE_LIMIT_BYTES)
        await server.start()
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(short_path / "s"))
        for _ in range(loop_iterations):
            await asyncio.sleep(0)
        await server.stop()
        client.settimeout(60)
        assert await asyncio.to_thread(client.recv, 1) == b""
        client.close()

    for loop_iterations in range(8):  # accepted, connected, task created, task started
        asyncio.run(run(loop_iterations))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_client_accepted_at_the_last_moment_is_closed(short_path: Path) -> None:
    async def run(loop_iterations: int) -> None:
        server = Server(short_path / "s", echo, line_limit=LINE_LIMIT_BYTES)
        await server.start()
        stopping = asyncio.create_task(server.stop())
        for _ in range(loop_iterations):
            await asyncio.sleep(0)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            with suppress(FileNotFoundError, ConnectionRefusedError):
                client.connect(str(short_path / "s"))
                with suppress(ConnectionResetError):
                    assert await asyncio.to_thread(client.recv, 1) == b""
            await stopping

    for loop_iterations in range(12):
        asyncio.run(run(loop_iterations))
        gc.collect()  # Python warns about unclosed sockets here


def checks_of(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the results of all later checks whether a path has no listener."""
    found: list[bool] = []
    check = server_module.has_no_listener

    def record(path: Path, own: int) -> bool:
        found.append(check(path, own))
        return found[-1]

    monkeypatch.setattr(server_module, "has_no_listener", record)
    return found


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_socket_taken_and_left_by_another_server_is_recreated(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    path = short_path / "s"

    async def run() -> None:
        checks = checks_of(monkeypatch)
        older, newer = (Server(path, echo, line_limit=LINE_LIMIT_BYTES, interval_s=0.05) for _ in range(2))
        await older.start()
        if end == "stopped":
            await newer.start()
            inode = path.stat().st_ino
        else:
            path.unlink()
            killed = socket.socket(socket.AF_UNIX)
            killed.bind(str(path))
            killed.listen(128)
            inode = path.stat().st_ino
        checked = len(checks)
        await eventually_async(lambda: len(checks) >= checked + 4)  # at least one of each server that runs
        # The number of the inode alone can be that of another socket: file systems reuse it.
        assert path.stat().st_ino == inode and not any(checks), "a listening server is not replaced"
        if end == "stopped":
            await newer.stop()
        else:
            killed.close()  # as after kill -9: no process listens, and the file remains
        try:
            await eventually_async(lambda: asyncio.to_thread(_responds, path))
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            await older.stop()
        assert not path.exists()

    asyncio.run(run())


def _responds(path: Path) -> bool:
    try:
        return bool(ask(path) == {"text": "a"})
    except RetryableError:
        return False


def test_a_file_that_is_not_a_socket_is_not_replaced(short_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = short_path / "s"

    async def run() -> None:
        server = Server(path, echo, line_limit=LINE_LIMIT_BYTES, interval_s=0.02)
        await server.start()
        path.unlink()
        path.write_text("mine")
        await eventually_async(lambda: "cannot listen again" in caplog.text)
        assert path.read_text() == "mine"
        path.unlink()
        try:
            await eventually_async(lambda: asyncio.to_thread(_responds, path))
        finally:
            await server.stop()

    asyncio.run(run())
