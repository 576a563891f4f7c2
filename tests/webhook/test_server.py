"""The webhook over real TLS: responses, misbehaving clients, certificate replacement and shutdown."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import preloaded
from dra_agent.errors import UsageError
from dra_agent.server_certificate import ReloadingCertificate
from dra_agent.webhook import server
from eventually import eventually
from loaded_modules import loaded_modules
from webhook.keys import Secret
from webhook.test_admission import admission_review, entry, parameters, resource

VALID_REVIEW = admission_review(resource("ResourceClaim", entry(parameters())))
INVALID_REVIEW = admission_review(resource("ResourceClaim", entry(parameters("Shrt"))))


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


class WebhookProcess:
    """`dra-agent webhook` as a process."""

    def __init__(self, secret: Secret, log: Path, *arguments: str | Path) -> None:
        self.secret = secret
        self.log = log
        command: list[str | Path] = ["webhook", "--listen", "127.0.0.1:0", "--tls-cert", secret.certificate]
        command += ["--tls-key", secret.key, "--metrics-address", "127.0.0.1:0", *arguments]
        with log.open("wb") as output:
            self.process = preloaded.Command(list(map(str, command)), stdout=output, stderr=output)
        self.port = int(self.wait_for_log("reviews port=").rpartition("port=")[2].split()[0])
        self.metrics_port = int(self.wait_for_log("/metrics port=").rpartition("port=")[2].split()[0])

    def wait_for_log(self, message: str) -> str:
        def lines() -> list[str]:
            found = [line for line in self.log.read_text().splitlines() if message in line]
            assert found or self.process.poll() is None, f"it ended without {message!r}: {self.log.read_text()}"
            return found

        return eventually(lines, lambda: f"no {message!r} in: {self.log.read_text()}")[0]

    def metric(self, name: str) -> float:
        """Return the value of a series, whose name includes its labels; -1 without the series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), -1.0)

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        trusted = context or self.secret.trusted()
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=trusted, timeout=120)


@pytest.fixture
def running(secret: Secret, tmp_path: Path) -> Iterator[WebhookProcess]:
    webhook = WebhookProcess(secret, tmp_path / "log")
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


def test_many_reviews_use_one_connection(running: WebhookProcess) -> None:
    connection = running.connect()
    connection.connect()
    first = connection.sock
    for _ in range(3):
        assert verdict(post(connection, VALID_REVIEW))["allowed"] is True
        refused = verdict(post(connection, INVALID_REVIEW))
        assert refused["allowed"] is False and "timeSlicing.interval" in refused["status"]["message"]
    running.wait_for_log('refused object="ResourceClaim default/x"')
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    connection.request("HEAD", "/readyz")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read() == b""
    assert post(connection, b"{")[0] == 400
    assert post(connection, VALID_REVIEW, "/elsewhere")[0] == 404
    connection.request("GET", "/validate")
    answer = connection.getresponse()
    assert answer.status == 405 and answer.read()
    assert connection.sock is first
    connection.close()


def test_a_body_that_is_too_large_is_not_read(running: WebhookProcess) -> None:
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
    assert verdict(post(after, VALID_REVIEW))["allowed"] is True
    after.close()


def test_misbehaving_clients_affect_no_other(running: WebhookProcess) -> None:
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
    assert verdict(post(polite, VALID_REVIEW))["allowed"] is True
    clients: list[socket.socket | http.client.HTTPSConnection] = [plain, *silent, garbage, polite]
    for client in clients:
        client.close()
    assert "Traceback" not in running.log.read_text()


def test_a_replaced_certificate_is_used_for_new_connections(running: WebhookProcess, secret: Secret) -> None:
    old = secret.trusted()
    open_connection = running.connect(old)
    assert post(open_connection, VALID_REVIEW)[0] == 200
    secret.renew(secret.certificate.read_bytes())
    running.wait_for_log("the new certificate cannot be used")
    other = running.connect(old)
    assert verdict(post(other, VALID_REVIEW))["allowed"] is True, "a pair that does not match changes nothing"
    secret.renew()
    running.wait_for_log("certificate replaced")
    new = running.connect()
    assert verdict(post(new, VALID_REVIEW))["allowed"] is True
    late = running.connect(old)
    with pytest.raises(ssl.SSLCertVerificationError):
        late.connect()
    assert post(open_connection, VALID_REVIEW)[0] == 200, "open connections stay open"
    for connection in (open_connection, other, new, late):
        connection.close()


def test_shutdown_does_not_wait_for_connected_clients(running: WebhookProcess) -> None:
    connections = [running.connect() for _ in range(5)]
    for connection in connections:
        assert post(connection, VALID_REVIEW)[0] == 200
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.log.read_text()
    for connection in connections:
        connection.close()


def test_unusable_certificates_are_refused_at_startup(secret: Secret, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        ReloadingCertificate(tmp_path / "none", secret.key)
    other = Secret(tmp_path / "other")
    with pytest.raises(UsageError, match="mismatch"):
        ReloadingCertificate(secret.certificate, other.key)
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match=r"--tls-cert \(.*empty\): it has no PEM certificate; give a PEM"):
        ReloadingCertificate(tmp_path / "empty", secret.key)


def test_an_address_in_use_is_refused(secret: Secret) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        certificate = ReloadingCertificate(secret.certificate, secret.key)
        webhook = server.Webhook(listener.getsockname(), certificate, lambda body: pytest.fail("asked"))
        with pytest.raises(UsageError, match=r"cannot listen on 127.0.0.1"):
            asyncio.run(webhook.start())


def test_no_unneeded_modules_are_imported() -> None:
    loaded = loaded_modules("import dra_agent.agent.webhook_runner")
    heavy = {"grpc", "google.protobuf", "pynvml", "rich", "yaml", "prometheus_client", "psutil", "sqlite3"}
    assert heavy.isdisjoint(loaded), sorted(heavy & set(loaded))


def test_reviews_are_counted_by_result(running: WebhookProcess) -> None:
    reviews = "dra_agent_webhook_reviews_total"
    assert running.metric(f'{reviews}{{result="allowed"}}') == 0, "series exist before the first event"
    connection = running.connect()
    for body in (VALID_REVIEW, INVALID_REVIEW, VALID_REVIEW, b"{"):
        post(connection, body)
    assert running.metric(f'{reviews}{{result="allowed"}}') == 2
    assert running.metric(f'{reviews}{{result="refused"}}') == 1
    assert running.metric(f'{reviews}{{result="unreadable"}}') == 1
    assert running.metric(f'{reviews}{{result="defect"}}') == 0
    assert running.metric("dra_agent_webhook_review_duration_seconds_count") == 4
    assert running.metric("dra_agent_webhook_connections") == 1
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    assert running.metric("dra_agent_webhook_review_duration_seconds_count") == 4, "a probe is not a review"
    connection.close()


def test_an_unusable_certificate_is_reported_in_a_metric(running: WebhookProcess, secret: Secret) -> None:
    unusable = "dra_agent_webhook_certificate_unusable"
    assert running.metric(unusable) == 0
    secret.renew(secret.certificate.read_bytes())
    running.wait_for_log("the new certificate cannot be used")
    assert running.metric(unusable) == 1
    secret.renew()
    running.wait_for_log("certificate replaced")
    assert running.metric(unusable) == 0


def test_idle_clients_do_not_block_the_api_server(running: WebhookProcess) -> None:
    """Any pod can connect where no network policy is enforced, and a connection may be idle for two minutes."""
    idle = []
    for _ in range(server.MAX_CONNECTIONS + 6):
        connection = running.connect()
        connection.connect()
        idle.append(connection)
    reviewing = running.connect()
    assert verdict(post(reviewing, VALID_REVIEW))["allowed"] is True
    assert running.metric("dra_agent_webhook_connections") <= server.MAX_CONNECTIONS
    assert running.metric("dra_agent_webhook_connections_closed_total") >= 6
    assert verdict(post(idle[-1], VALID_REVIEW))["allowed"] is True, "the most recent connections stay open"
    for connection in (*idle, reviewing):
        connection.close()


def test_an_unexpected_error_is_a_counted_response(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    results: list[str] = []

    class RecordingObserver(server.ReviewObserver):
        def review(self, result: str, seconds: float) -> None:
            results.append(result)

    def fail(body: bytes) -> Any:
        raise ZeroDivisionError("a defect")

    async def scenario() -> tuple[int, bytes]:
        webhook = server.Webhook(
            ("127.0.0.1", 0), ReloadingCertificate(secret.certificate, secret.key), fail, RecordingObserver()
        )
        await webhook.start()
        connection = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=secret.trusted(), timeout=120)
        answer = await asyncio.to_thread(post, connection, VALID_REVIEW)
        connection.close()
        await webhook.close()
        return answer

    status, body = asyncio.run(scenario())
    assert (status, results) == (500, ["defect"]) and b"ZeroDivisionError" not in body
    assert "a review failed" in caplog.text
