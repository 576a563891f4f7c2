"""Text from elsewhere that is nested too deeply is refused in words, as any other that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dra_agent.agent.hooks import Hooks
from dra_agent.cdi.metadata import generation_of
from dra_agent.errors import PermanentError, UsageError
from dra_agent.reclaim.wire import decode_request

DEEP = b'{"none":' + b"[" * 3000


def test_a_reclaim_request() -> None:
    with pytest.raises(UsageError, match="not a request"):
        decode_request(DEEP)


def test_a_request_of_a_hook(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path / "s", {})
    with pytest.raises(PermanentError, match="not understood"):
        asyncio.run(hooks._answer(DEEP))


def test_a_metadata_file() -> None:
    assert generation_of(DEEP) is None
