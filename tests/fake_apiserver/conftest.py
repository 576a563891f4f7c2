"""A fake API server with TLS, and the authority of its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_apiserver.certificates import Authority
from fake_apiserver.fake import FakeApi


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def secure(authority: Authority) -> Iterator[FakeApi]:
    api = FakeApi(authority.server_context())
    api.start()
    api.put("nodes", {"metadata": {"name": "n1"}})
    yield api
    api.stop()
