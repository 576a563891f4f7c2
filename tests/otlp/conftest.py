from __future__ import annotations

from collections.abc import Iterator

import pytest

from otlp.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()
