"""Small parts of the agent: log lines, state lock, systemd notifications, liveness and endpoints."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.agent.liveness import READY, STALL_TIMEOUT_S, LivenessMonitor, MonitoredThread, Notifier
from dra_agent.agent.logs import JsonFormatter, TextFormatter
from dra_agent.agent.rolling_update import StateLock
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError, UsageError
from dra_agent.metrics.http_server import HttpServer
from dra_agent.metrics.instrumented_preparer import InstrumentedPreparer
from dra_agent.metrics.liveness import LivenessMetrics
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import DeviceInfo, MetricsSnapshot
from eventually import DEADLINE_S, eventually_async


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, logging.Handler, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("dra_agent.test")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger, handler, stream
    logger.removeHandler(handler)


def test_text_lines_quote_line_breaks_and_quotes(
    logged: tuple[logging.Logger, logging.Handler, io.StringIO],
) -> None:
    logger, handler, stream = logged
    handler.setFormatter(TextFormatter())
    logger.info("claim prepared", extra={"claim": "u-1", "devices": ["a", "b"], "reason": 'two\nlines and "quotes"'})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.endswith(' info claim prepared claim=u-1 devices=a,b reason="two\\nlines and \\"quotes\\""\n')


def test_journal_lines_have_a_priority_and_no_time(
    logged: tuple[logging.Logger, logging.Handler, io.StringIO],
) -> None:
    logger, handler, stream = logged
    handler.setFormatter(TextFormatter(journal=True))
    logger.warning("device left out", extra={"device": "gpu-0"})
    assert stream.getvalue() == "<4>device left out device=gpu-0\n"


def test_json_lines_in_the_journal_have_a_priority(
    logged: tuple[logging.Logger, logging.Handler, io.StringIO],
) -> None:
    logger, handler, stream = logged
    handler.setFormatter(JsonFormatter(journal=True))
    logger.warning("device left out", extra={"device": "gpu-0"})
    assert stream.getvalue().startswith("<4>{")
    event = json.loads(stream.getvalue().removeprefix("<4>"))
    assert (event["message"], event["level"], event["device"]) == ("device left out", "warning", "gpu-0")


def test_json_lines_have_fields_and_tracebacks_as_values(
    logged: tuple[logging.Logger, logging.Handler, io.StringIO],
) -> None:
    logger, handler, stream = logged
    handler.setFormatter(JsonFormatter())
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("claim not prepared", extra={"claim": "u-1", "path": Path("/x")})
    event = json.loads(stream.getvalue())
    assert event["claim"] == "u-1"
    assert event["path"] == "/x"
    assert event["level"] == "error"
    assert "ValueError: broken" in event["exception"]


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from dra_agent.agent.rolling_update import StateLock
        StateLock(Path(sys.argv[1]))
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """)
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            pid = holder.stdout.readline().strip()
            with pytest.raises(PermanentError, match=rf"another agent \(pid {pid}\)") as refused:
                StateLock(tmp_path)
            assert refused.value.exit_code == 1
        finally:
            holder.kill()  # a stopped process never exits by itself
    lock = StateLock(tmp_path)
    lock.close()
    StateLock(tmp_path).close()


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications_reach_systemd(tmp_path: Path, abstract: bool) -> None:
    name = f"@dra-agent-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + name[1:] if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
        notifier.send(READY, "STATUS=8 devices")
        assert channel.recv(100) == b"READY=1\nSTATUS=8 devices"
        assert notifier.watchdog == 30.0


def test_without_systemd_notifications_do_nothing(tmp_path: Path) -> None:
    Notifier({}).send(READY)
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).status("x")
    assert Notifier({}).watchdog is None
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog is None


def test_liveness_reports_a_stuck_loop_and_overdue_work() -> None:
    now = [0.0]
    liveness = LivenessMonitor(lambda: now[0])
    with liveness.working("prepare", 60.0), liveness.working("unprepare", 5.0):
        now[0] = 10.0
        liveness.heartbeat()
        assert liveness.failures() == ["unprepare is 5 s overdue"]
        now[0] += STALL_TIMEOUT_S + 1
        assert liveness.failures()[0] == "the event loop has been stuck for 16 s"
    liveness.heartbeat()
    assert liveness.failures() == []


def test_a_call_on_a_monitored_thread_is_overdue_until_it_ends() -> None:
    now = [0.0]
    liveness = LivenessMonitor(lambda: now[0])
    may_end = threading.Event()

    async def scenario() -> bool:
        thread = MonitoredThread("hardware", liveness)
        try:
            call = asyncio.create_task(thread.run("scan", 5.0, lambda: may_end.wait(DEADLINE_S)))
            await eventually_async(lambda: liveness.busy() == ["scan"])
            now[0] = 7.0
            assert liveness.failures() == ["scan is 2 s overdue"]
            may_end.set()
            return await call
        finally:
            may_end.set()
            thread.shutdown()

    assert asyncio.run(scenario())
    assert (liveness.busy(), liveness.failures()) == ([], [])


@pytest.fixture
def server() -> Iterator[tuple[HttpServer, list[str]]]:
    failures: list[str] = []
    metrics = Metrics(lambda: MetricsSnapshot((DeviceInfo("gpu-0", "n/gpu", "free", 'u"1', "A\\B"),), 3))
    metrics.add(LivenessMetrics(lambda: failures))
    server = HttpServer(("127.0.0.1", 0), render=metrics.render, healthy=lambda: failures, ready=lambda: ["starting"])
    server.start()
    yield server, failures
    server.close()


def request(
    server: HttpServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_endpoints_return_status_and_metrics(server: tuple[HttpServer, list[str]]) -> None:
    endpoint, failures = server
    assert request(endpoint, "/healthz") == (200, "ok\n")
    assert "\ndra_agent_live 1.0\n" in request(endpoint, "/metrics")[1]
    failures.append("the event loop has been stuck for 16 s")
    assert request(endpoint, "/healthz") == (503, "the event loop has been stuck for 16 s\n")
    assert request(endpoint, "/readyz") == (503, "starting\n")
    assert request(endpoint, "/healthz?x=1", "HEAD") == (503, "")
    assert request(endpoint, "/metrics", "POST")[0] == 501
    status, text = request(endpoint, "/metrics")
    assert status == 200 and "\ndra_agent_live 0.0\n" in text
    assert 'dra_agent_device_info{device="gpu-0",pool="n/gpu",product="A\\\\B",uuid="u\\"1"} 1.0' in text
    assert "dra_agent_prepared_claims 3.0" in text
    openmetrics = request(endpoint, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})[1]
    assert openmetrics.endswith("# EOF\n")


def test_a_silent_client_does_not_block_others(server: tuple[HttpServer, list[str]]) -> None:
    endpoint, _ = server
    with socket.create_connection(("127.0.0.1", endpoint.port)) as silent:
        silent.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert request(endpoint, "/healthz")[0] == 200


def test_an_address_of_another_host_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1:9"):
        HttpServer(("192.0.2.1", 9), render=lambda _: (b"", ""), healthy=list, ready=list)


class FailingPreparer:
    """A preparer that raises."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def prepare(self, claim: object, deadline: Deadline) -> list[ClaimDevice]:
        if self.error:
            raise self.error
        return []

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        if self.error:
            raise self.error


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "ok"),
        (RetryableError("busy"), "retryable"),
        (UsageError("no"), "permanent"),
        (RuntimeError("bug"), "defect"),
    ],
)
def test_every_request_is_counted_by_its_result(error: Exception | None, result: str) -> None:
    metrics = Metrics(MetricsSnapshot)
    preparer = InstrumentedPreparer(FailingPreparer(error), LivenessMonitor(), metrics)
    for call in (lambda: preparer.prepare({}, Deadline.of(60)), lambda: preparer.unprepare("u", Deadline.of(60))):
        try:
            call()
        except (RetryableError, UsageError, RuntimeError) as raised:
            assert raised is error
    text = metrics.render()[0].decode()
    for operation in ("prepare", "unprepare"):
        assert f'dra_agent_dra_requests_total{{operation="{operation}",result="{result}"}} 1.0' in text
        assert f'dra_agent_dra_request_duration_seconds_count{{operation="{operation}"}} 1.0' in text
    assert "dra_agent_dra_requests_inflight 0.0" in text
