"""The webhook over real TLS: answers, rude clients, certificates that are replaced, and its end."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import UsageError
from dra_agent.webhook import server
from dra_agent.webhook.certificate import ReloadingCertificate
from eventually import eventually
from webhook.keys import Secret
from webhook.test_admission import asked, entry, parameters, thing

RIGHT = asked(thing("ResourceClaim", entry(parameters())))
WRONG = asked(thing("ResourceClaim", entry(parameters("Shrt"))))


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


class Running:
    """`dra-agent webhook` as a process."""

    def __init__(self, secret: Secret, log: Path, *arguments: str | Path) -> None:
        self.secret = secret
        self.log = log
        command: list[str | Path] = [Path(sys.executable).with_name("dra-agent"), "webhook", "--listen", "127.0.0.1:0"]
        command += ["--tls-cert", secret.certificate, "--tls-key", secret.key, "--metrics-address", "127.0.0.1:0"]
        command += arguments
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.port = int(self.said("reviews port=").rpartition("port=")[2].split()[0])
        self.metrics_port = int(self.said("/metrics port=").rpartition("port=")[2].split()[0])

    def said(self, what: str) -> str:
        def lines() -> list[str]:
            found = [line for line in self.log.read_text().splitlines() if what in line]
            assert found or self.process.poll() is None, f"it ended without {what!r}: {self.log.read_text()}"
            return found

        return eventually(lines, lambda: f"it never said {what!r}: {self.log.read_text()}")[0]

    def metric(self, name: str) -> float:
        """The value of one series, labels included in its name; what is not there is -1."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), -1.0)

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        trusted = context or self.secret.trusted()
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, timeout=120)


@pytest.fixture
def running(secret: Secret, tmp_path: Path) -> Iterator[Running]:
    webhook = Running(secret, tmp_path / "log")
    yield webhook
    if webhook.process.poll() is None:
        webhook.process.kill()
    webhook.process.wait()


def post(connection: http.client.HTTPSConnection, body: bytes, path: str = "/validate?timeout=5s") -> tuple[int, bytes]:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def verdict(answer: tuple[int, bytes]) -> dict[str, Any]:
    assert answer[0] == 200, answer
    response: dict[str, Any] = json.loads(answer[1])["response"]
    return response


def test_it_answers_many_reviews_on_one_connection(running: Running) -> None:
    connection = running.connect()
    connection.connect()
    first = connection.sock
    for _ in range(3):
        assert verdict(post(connection, RIGHT))["allowed"] is True
        refused = verdict(post(connection, WRONG))
        assert refused["allowed"] is False and "timeSlicing.interval" in refused["status"]["message"]
    running.said('refused object="ResourceClaim default/x"')
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    connection.request("HEAD", "/readyz")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read() == b""
    assert post(connection, b"{")[0] == 400
    assert post(connection, RIGHT, "/elsewhere")[0] == 404
    connection.request("GET", "/validate")
    answer = connection.getresponse()
    assert answer.status == 405 and answer.read()
    assert connection.sock is first
    connection.close()


def test_what_is_too_large_is_not_read(running: Running) -> None:
    connection = running.connect()
    connection.putrequest("POST", "/validate")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    sent = 0
    with pytest.raises(OSError):
        while sent < 1 << 30:
            connection.send(b" " * (1 << 20))
            sent += 1 << 20
    assert sent < 1 << 28
    connection.close()
    after = running.connect()
    assert verdict(post(after, RIGHT))["allowed"] is True
    after.close()


def test_rude_clients_cost_nobody_else(running: Running) -> None:
    plain = socket.create_connection(("127.0.0.1", running.port))
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    silent = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(20)]
    garbage = running.connect()
    garbage.connect()
    garbage.sock.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
    half = running.connect()
    half.putrequest("POST", "/validate")
    half.putheader("Content-Length", "100")
    half.endheaders(b"{")
    half.close()
    polite = running.connect()
    assert verdict(post(polite, RIGHT))["allowed"] is True
    clients: list[socket.socket | http.client.HTTPSConnection] = [plain, *silent, garbage, polite]
    for client in clients:
        client.close()
    assert "Traceback" not in running.log.read_text()


def test_a_replaced_certificate_is_shown_to_new_connections(running: Running, secret: Secret) -> None:
    old = secret.trusted()
    kept = running.connect(old)
    assert post(kept, RIGHT)[0] == 200
    secret.renew(secret.certificate.read_bytes())
    running.said("the new certificate cannot be used")
    other = running.connect(old)
    assert verdict(post(other, RIGHT))["allowed"] is True, "a pair that is no pair changes nothing"
    secret.renew()
    running.said("certificate replaced")
    new = running.connect()
    assert verdict(post(new, RIGHT))["allowed"] is True
    late = running.connect(old)
    with pytest.raises(ssl.SSLCertVerificationError):
        late.connect()
    assert post(kept, RIGHT)[0] == 200, "who is connected stays so"
    for connection in (kept, other, new, late):
        connection.close()


def test_it_ends_at_once_though_clients_are_connected(running: Running) -> None:
    connections = [running.connect() for _ in range(5)]
    for connection in connections:
        assert post(connection, RIGHT)[0] == 200
    running.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert running.process.wait(60) == 0 and time.monotonic() - began < 50
    assert "Traceback" not in running.log.read_text()
    for connection in connections:
        connection.close()


def test_what_it_cannot_start_with(secret: Secret, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        ReloadingCertificate(tmp_path / "none", secret.key)
    other = Secret(tmp_path / "other")
    with pytest.raises(UsageError, match="mismatch"):
        ReloadingCertificate(secret.certificate, other.key)
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match=r"empty and .*; give a PEM"):
        ReloadingCertificate(tmp_path / "empty", secret.key)


def test_an_address_that_is_taken(secret: Secret) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        certificate = ReloadingCertificate(secret.certificate, secret.key)
        webhook = server.Webhook(taken.getsockname(), certificate, lambda body: pytest.fail("asked"))
        with pytest.raises(UsageError, match=r"cannot listen on 127.0.0.1"):
            asyncio.run(webhook.start())


def test_it_loads_only_what_it_needs() -> None:
    code = "import sys, dra_agent.agent.webhook_runner; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"grpc", "google.protobuf", "pynvml", "rich", "yaml", "prometheus_client", "psutil", "sqlite3"}
    assert heavy.isdisjoint(loaded), sorted(heavy & set(loaded))


def test_what_it_answers_is_counted_by_how_it_ended(running: Running) -> None:
    reviews = "dra_agent_webhook_reviews_total"
    assert running.metric(f'{reviews}{{result="allowed"}}') == 0, "series are there before anything has happened"
    connection = running.connect()
    for body in (RIGHT, WRONG, RIGHT, b"{"):
        post(connection, body)
    assert running.metric(f'{reviews}{{result="allowed"}}') == 2
    assert running.metric(f'{reviews}{{result="refused"}}') == 1
    assert running.metric(f'{reviews}{{result="unreadable"}}') == 1
    assert running.metric(f'{reviews}{{result="defect"}}') == 0
    assert running.metric("dra_agent_webhook_review_duration_seconds_count") == 4
    assert running.metric("dra_agent_webhook_connections") == 1
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    assert running.metric("dra_agent_webhook_review_duration_seconds_count") == 4, "a probe is no review"
    connection.close()


def test_a_certificate_that_cannot_be_used_is_seen_before_the_old_one_has_ended(
    running: Running, secret: Secret
) -> None:
    unusable = "dra_agent_webhook_certificate_unusable"
    assert running.metric(unusable) == 0
    secret.renew(secret.certificate.read_bytes())
    running.said("the new certificate cannot be used")
    assert running.metric(unusable) == 1
    secret.renew()
    running.said("certificate replaced")
    assert running.metric(unusable) == 0


def test_clients_that_ask_nothing_never_keep_the_api_server_out(running: Running) -> None:
    """Any pod may connect where no network policy is enforced, and a connection may be idle for two minutes."""
    idle = []
    for _ in range(server.MAX_CONNECTIONS + 6):
        connection = running.connect()
        connection.connect()
        idle.append(connection)
    asking = running.connect()
    assert verdict(post(asking, RIGHT))["allowed"] is True
    assert running.metric("dra_agent_webhook_connections") <= server.MAX_CONNECTIONS
    assert running.metric("dra_agent_webhook_connections_closed_total") >= 6
    assert verdict(post(idle[-1], RIGHT))["allowed"] is True, "those who came last stay"
    for connection in (*idle, asking):
        connection.close()


def test_a_defect_is_an_answer_and_counted(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Counted(server.ReviewObserver):
        def review(self, result: str, seconds: float) -> None:
            seen.append(result)

    def judge(body: bytes) -> Any:
        raise ZeroDivisionError("a defect")

    async def story() -> tuple[int, bytes]:
        webhook = server.Webhook(
            ("127.0.0.1", 0), ReloadingCertificate(secret.certificate, secret.key), judge, Counted()
        )
        await webhook.start()
        connection = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=secret.trusted(), timeout=120)
        answer = await asyncio.to_thread(post, connection, RIGHT)
        connection.close()
        await webhook.close()
        return answer

    status, body = asyncio.run(story())
    assert (status, seen) == (500, ["defect"]) and b"ZeroDivisionError" not in body
    assert "a review failed" in caplog.text
