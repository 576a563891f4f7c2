"""When telemetry runs, and which clients see the names of claims."""

from __future__ import annotations

import pytest

from dra_agent.agent.config import Config, is_loopback
from loaded_modules import loaded_modules


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9464", True),
        ("127.5.0.1:1", True),
        ("[::1]:9464", True),
        ("localhost:9464", True),
        (":9464", False),
        ("0.0.0.0:9464", False),
        ("[::]:9464", False),
        ("10.0.0.1:9464", False),
        ("localhost.example.com:9464", False),
    ],
)
def test_only_loopback_addresses_are_closed(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_telemetry_is_off_and_not_loaded_by_default() -> None:
    assert Config().telemetry.interval == 0
    loaded = loaded_modules("import dra_agent.agent.agent, dra_agent.metrics.registry")
    assert {name for name in loaded if name.startswith("dra_agent.telemetry")} <= {
        "dra_agent.telemetry",
        "dra_agent.telemetry.settings",
    }
