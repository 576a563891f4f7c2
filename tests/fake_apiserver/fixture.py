"""`fake_api`: an API server for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_apiserver.fake import FakeApi


@pytest.fixture
def fake_api() -> Iterator[FakeApi]:
    """A running fake API server; connect to it with `connect(fake_api.kubeconfig(tmp_path / "kubeconfig"))`."""
    api = FakeApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()
