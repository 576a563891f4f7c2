"""Input that is nested too deeply or not UTF-8 is refused with the usual message for unreadable input."""

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

DEEP = b'{"none":' + b"[" * 3000


def malformed(field: str) -> list[bytes]:
    """Return input that is nested too deeply, and input that is not UTF-8."""
    return [DEEP, b'{"%s":"\xff"}' % field.encode()]


@pytest.mark.parametrize("line", malformed("op"))
def test_malformed_reclaim_request_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        reclaim.decode_request(line)


@pytest.mark.parametrize("line", [b'{"op":"apply","objects":[' + b'{"a":' * 3000, *malformed("op")])
def test_malformed_standalone_request_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        standalone.decode_request(line)


@pytest.mark.parametrize("line", malformed("op"))
def test_malformed_release_request_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError, match="not a request"):
        release_socket.decode_request(line)


@pytest.mark.parametrize("line", malformed("task"))
def test_malformed_hook_request_is_refused(line: bytes, tmp_path: Path) -> None:
    hooks = HookServer(tmp_path / "s", {})
    with pytest.raises(PermanentError, match="not understood"):
        asyncio.run(hooks.handle(line))


def test_malformed_metadata_file_is_ignored() -> None:
    assert generation_of(DEEP) is None
