"""Text from elsewhere that is nested too deeply, or no UTF-8, is refused in words, as any other that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dra_agent.agent.hook_server import HookServer
from dra_agent.cdi.metadata import generation_of
from dra_agent.errors import PermanentError, UsageError
from dra_agent.reclaim import control as reclaim
from dra_agent.standalone import protocol as standalone
from dra_agent.status import release_socket
from dra_agent.webhook.admission import MalformedReviewError, review

DEEP = b'{"none":' + b"[" * 3000


def wrong(field: str) -> list[bytes]:
    """Return what is nested too deeply, and what has a text that is no UTF-8."""
    return [DEEP, b'{"%s":"\xff"}' % field.encode()]


@pytest.mark.parametrize("line", wrong("op"))
def test_a_reclaim_request(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        reclaim.decode_request(line)


@pytest.mark.parametrize("line", [b'{"op":"apply","objects":[' + b'{"a":' * 3000, *wrong("op")])
def test_a_standalone_request(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        standalone.decode_request(line)


@pytest.mark.parametrize("line", wrong("op"))
def test_a_request_to_release(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        release_socket.decode_request(line)


@pytest.mark.parametrize("line", wrong("task"))
def test_a_request_of_a_hook(line: bytes, tmp_path: Path) -> None:
    hooks = HookServer(tmp_path / "s", {})
    with pytest.raises(PermanentError, match="not understood"):
        asyncio.run(hooks._handle(line))


@pytest.mark.parametrize("body", wrong("apiVersion"))
def test_a_review(body: bytes) -> None:
    with pytest.raises(MalformedReviewError, match="not an AdmissionReview"):
        review(body, "d.example.com", {})


def test_a_metadata_file() -> None:
    assert generation_of(DEEP) is None
