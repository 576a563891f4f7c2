"""When telemetry runs."""

from __future__ import annotations

from dra_agent.agent.config import Config
from loaded_modules import loaded_modules


def test_telemetry_is_off_and_not_loaded_by_default() -> None:
    assert Config().telemetry.interval == 0
    loaded = loaded_modules("import dra_agent.agent.agent, dra_agent.metrics.registry")
    assert {name for name in loaded if name.startswith("dra_agent.telemetry")} <= {
        "dra_agent.telemetry",
        "dra_agent.telemetry.settings",
    }
