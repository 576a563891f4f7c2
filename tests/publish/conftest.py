from __future__ import annotations

from pathlib import Path

import pytest

from fake_apiserver.fake import FakeApi
from publish.node import Node


@pytest.fixture
def node(fake_api: FakeApi, tmp_path: Path) -> Node:
    return Node(fake_api, tmp_path / "kubeconfig")
