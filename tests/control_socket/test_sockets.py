"""A socket of this host: who may speak, what comes back, and clients that misbehave alone."""

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

from dra_agent.control_socket import server as listening
from dra_agent.control_socket.protocol import Connection
from dra_agent.control_socket.server import Server
from dra_agent.errors import AgentError, PermanentError, RetryableError, UsageError
from eventually import DEADLINE_S, eventually_async

LIMIT = 64 * 1024


class Echo(msgspec.Struct):
    """A request of these tests."""

    text: str


async def echo(line: bytes) -> Any:
    """Give back what was asked, or fail as asked."""
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
    return Connection(path, no_agent="nobody is here", hint="start somebody")


def ask(path: Path) -> Any:
    with connect(path) as connection:
        return connection.call(Echo("a"), timeout=60)


def during(path: Path, story: Callable[[], Any], handler: Callable[[bytes], Awaitable[Any]] = echo) -> Any:
    """Run a blocking story in a thread while the socket is served."""

    async def run() -> Any:
        server = Server(path, handler, line_limit=LIMIT)
        await server.start()
        try:
            return await asyncio.to_thread(story)
        finally:
            await server.stop()

    return asyncio.run(run())


def test_answers_come_back_in_order_on_one_connection(short_path: Path) -> None:
    path = short_path / "s"

    def story() -> list[Any]:
        with connect(path) as connection:
            return [connection.call(Echo(text), timeout=60) for text in "abc"]

    assert during(path, story) == [{"text": text} for text in "abc"]
    assert not path.exists(), "the socket is removed when nobody listens any more"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("retry", RetryableError, "gpu-0: busy; wait"),
        ("never", PermanentError, "no"),
        ("wrong", UsageError, "what"),
        ("bug", PermanentError, "internal error: ZeroDivisionError"),
    ],
)
def test_an_error_is_raised_on_the_other_side(
    short_path: Path, text: str, kind: type[AgentError], message: str
) -> None:
    path = short_path / "s"

    def story() -> None:
        with connect(path) as connection:
            with pytest.raises(kind, match=message):
                connection.call(Echo(text), timeout=60)
            assert connection.call(Echo("and on"), timeout=60) == {"text": "and on"}

    during(path, story)


def test_a_line_without_end_is_refused_and_nobody_else_is_disturbed(short_path: Path) -> None:
    path = short_path / "s"

    def story() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(path))
            try:
                client.sendall(b"x" * 1_000_000)
                answer = client.makefile("rb").readline()
            except ConnectionError:
                answer = b""
            if answer:
                assert json.loads(answer)["failure"]["family"] == "usage"
        with connect(path) as connection:
            assert connection.call(Echo("a"), timeout=60) == {"text": "a"}

    during(path, story)


def test_one_client_too_many_is_turned_away(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 1)
    path = short_path / "s"

    def story() -> None:
        with connect(path) as first:
            first.call(Echo("a"), timeout=60)
            with connect(path) as second, pytest.raises(RetryableError, match="went away|connection broke"):
                second.call(Echo("b"), timeout=60)
            assert first.call(Echo("c"), timeout=60) == {"text": "c"}

    during(path, story)


def test_a_silent_client_is_hung_up_on(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "IDLE_TIMEOUT_S", 0.05)
    path = short_path / "s"

    def story() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(path))
            return client.recv(1)

    assert during(path, story) == b""


def test_an_answer_that_does_not_come_is_an_error_that_may_pass(short_path: Path) -> None:
    async def never(line: bytes) -> Any:
        await asyncio.sleep(30)

    path = short_path / "s"

    def story() -> None:
        with connect(path) as connection, pytest.raises(RetryableError, match="did not respond in time"):
            connection.call(Echo("a"), timeout=0.1)

    during(path, story, never)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_somebody_else_is_not_listened_to(short_path: Path) -> None:
    short_path.chmod(0o711)
    path, heard = short_path / "s", []

    async def hear(line: bytes) -> None:
        heard.append(line)

    def intrude() -> int:
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)  # even if somebody opened the socket to all
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child calls nothing that another thread may hold a lock of
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

    assert during(path, intrude, hear) == 0
    assert heard == []


def test_a_socket_that_was_left_behind_is_replaced_and_anything_else_is_not(short_path: Path) -> None:
    path = short_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert during(path, lambda: ask(path)) == {"text": "a"}
    path.write_text("mine")
    with pytest.raises(PermanentError, match="in the way"):
        during(path, lambda: None)
    assert path.read_text() == "mine"


def test_a_path_that_no_socket_can_have_is_refused(short_path: Path) -> None:
    with pytest.raises(UsageError, match="longer than 107 bytes; choose a shorter"):
        during(short_path / ("x" * 120), lambda: None)


def test_a_successors_socket_is_left_alone(short_path: Path) -> None:
    path = short_path / "s"

    async def story() -> None:
        old, new = (Server(path, echo, line_limit=LIMIT) for _ in range(2))
        await old.start()
        await new.start()
        await old.stop()
        try:
            assert await asyncio.to_thread(ask, path) == {"text": "a"}
        finally:
            await new.stop()
        assert not path.exists()

    asyncio.run(story())


def test_nobody_there_says_what_to_do(short_path: Path) -> None:
    with pytest.raises(RetryableError, match="nobody is here; start somebody"):
        connect(short_path / "s")


def test_a_client_that_connects_while_the_server_stops_is_dropped(short_path: Path) -> None:
    async def run(turns: int) -> None:
        server = Server(short_path / "s", echo, line_limit=LIMIT)
        await server.start()
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(short_path / "s"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        client.settimeout(60)
        assert await asyncio.to_thread(client.recv, 1) == b""
        client.close()

    for turns in range(8):  # accepted, connected, its task made, its task begun
        asyncio.run(run(turns))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_client_that_is_accepted_in_the_last_moment_of_a_server_is_closed(short_path: Path) -> None:
    async def run(turns: int) -> None:
        server = Server(short_path / "s", echo, line_limit=LIMIT)
        await server.start()
        stopping = asyncio.create_task(server.stop())
        for _ in range(turns):
            await asyncio.sleep(0)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            with suppress(FileNotFoundError, ConnectionRefusedError):
                client.connect(str(short_path / "s"))
                with suppress(ConnectionResetError):
                    assert await asyncio.to_thread(client.recv, 1) == b""
            await stopping

    for turns in range(12):
        asyncio.run(run(turns))
        gc.collect()  # here Python warns of what was left open


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_socket_that_another_server_took_and_left_is_taken_again(short_path: Path, end: str) -> None:
    path = short_path / "s"

    async def run() -> None:
        older, newer = (Server(path, echo, line_limit=LIMIT, every=0.05) for _ in range(2))
        await older.start()
        if end == "stopped":
            await newer.start()
            taken = path.stat().st_ino
        else:
            path.unlink()
            killed = socket.socket(socket.AF_UNIX)
            killed.bind(str(path))
            killed.listen(128)
            taken = path.stat().st_ino
        await asyncio.sleep(0.2)
        assert path.stat().st_ino == taken, "who listens there is left alone"
        if end == "stopped":
            await newer.stop()
        else:
            killed.close()  # as after kill -9: nobody listens any more, and the file stays
        try:
            await eventually_async(lambda: asyncio.to_thread(_answers, path))
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            await older.stop()
        assert not path.exists()

    asyncio.run(run())


def _answers(path: Path) -> bool:
    try:
        return bool(ask(path) == {"text": "a"})
    except RetryableError:
        return False


def test_what_is_not_a_socket_is_left_where_it_is(short_path: Path) -> None:
    path = short_path / "s"

    async def run() -> None:
        server = Server(path, echo, line_limit=LIMIT, every=0.02)
        await server.start()
        path.unlink()
        path.write_text("mine")
        await asyncio.sleep(0.3)
        assert path.read_text() == "mine"
        path.unlink()
        try:
            await eventually_async(lambda: asyncio.to_thread(_answers, path))
        finally:
            await server.stop()

    asyncio.run(run())
