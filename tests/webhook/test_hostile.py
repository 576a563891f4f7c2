"""A pod that posts the largest possible reviews: the webhook serves others with limited memory and a short log."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.prepare.config import MAX_CONFIGS
from dra_agent.webhook.admission import MAX_MESSAGE_CHARS
from eventually import DEADLINE_S
from webhook.keys import Secret
from webhook.test_admission import admission_review, entry, parameters, resource
from webhook.test_server import VALID_REVIEW, WebhookProcess, post, verdict

__all__ = ["secret"]

POSTED_BYTES = 7 << 20
MEMORY_BYTES = 128 << 20
"""The memory limit of the chart."""
LOG_BYTES = 64 << 10
PROBE_S = DEADLINE_S
HOSTILE = "\x1b]8;;https://evil.example/\x07"


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


@pytest.fixture
def webhook(secret: Secret, tmp_path: Path) -> Iterator[WebhookProcess]:
    process = WebhookProcess(secret, tmp_path / "log")
    yield process
    if process.process.poll() is None:
        process.process.kill()
    process.process.wait()


def large(size: int) -> bytes:
    """Return a review with many invalid entries, each of which would be a separate message."""
    entry_json = json.dumps(entry(parameters(HOSTILE * 10)))
    count = size // (len(entry_json) + 2)
    body = json.loads(admission_review(resource("ResourceClaim", entry(parameters("Shrt")))))
    body["request"]["object"]["spec"]["devices"]["config"] = [json.loads(entry_json)] * count
    return json.dumps(body).encode()


def peak_memory(webhook: WebhookProcess) -> int:
    status = Path(f"/proc/{webhook.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("size", [POSTED_BYTES, 3 << 20], ids=["too large", "as large as can be"])
def test_large_reviews_affect_neither_probes_nor_memory(webhook: WebhookProcess, size: int) -> None:
    body = large(size)
    done = threading.Event()

    def attack() -> None:
        while not done.is_set():
            connection = webhook.connect()
            try:
                connection.request("POST", "/validate", body)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()

    attackers = [threading.Thread(target=attack, daemon=True) for _ in range(3)]
    for attacker in attackers:
        attacker.start()
    try:
        for _ in range(10):
            start = time.monotonic()
            probe = webhook.connect()
            probe.request("GET", "/healthz")
            assert probe.getresponse().read() == b"ok\n"
            probe.close()
            assert time.monotonic() - start < PROBE_S
        ordinary = webhook.connect()
        assert verdict(post(ordinary, VALID_REVIEW))["allowed"] is True
        ordinary.close()
    finally:
        done.set()
        for attacker in attackers:
            attacker.join(60)
    assert peak_memory(webhook) < MEMORY_BYTES


def test_a_large_review_causes_a_short_response_and_log_line(webhook: WebhookProcess) -> None:
    connection = webhook.connect()
    answer: dict[str, Any] = verdict(post(connection, large(3 << 20)))
    connection.close()
    assert answer["allowed"] is False
    message = answer["status"]["message"]
    assert len(message) <= MAX_MESSAGE_CHARS and "\x1b" not in message and "config[0]" in message
    assert f"config[{MAX_CONFIGS}]" not in message
    assert len(webhook.log.read_bytes()) < LOG_BYTES
