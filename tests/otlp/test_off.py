"""Without an endpoint nothing of the export is loaded, and a prepare calls nothing of it."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import dra_agent.otlp
from dra_agent.agent.config import Config
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.kubelet_plugin import traced
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from kubelet_plugin.conftest import Node, claim
from loaded_modules import loaded_modules

FOLDER = str(Path(dra_agent.otlp.__file__).parent)


def test_it_is_off_by_default() -> None:
    assert Config().otlp.endpoint == ""


@pytest.mark.parametrize("mode", ["standalone_mode", "kubernetes_mode"])
def test_nothing_of_it_is_loaded(mode: str) -> None:
    code = (
        f"import dra_agent.agent.agent, dra_agent.agent.{mode}, dra_agent.metrics.registry;"
        "from dra_agent.agent.config import Config, checksum; checksum(Config())"
    )
    loaded = loaded_modules(code)
    assert not [name for name in loaded if name.startswith("opentelemetry")]
    assert {name for name in loaded if name.startswith("dra_agent.otlp") or "traced" in name} == {
        "dra_agent.otlp",
        "dra_agent.otlp.settings",
    }


def test_a_prepare_calls_nothing_of_it(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(short_path)
    node.claims.claims |= {"c": claim("c", "u"), "d": claim("d", "v")}
    metrics = Metrics(MetricsSnapshot)
    called: set[str] = set()
    prepare = node.devices.prepare

    def with_phase(claim: dict[str, object], deadline: Deadline) -> list[ClaimDevice]:
        metrics.observe_phase("cdi", 0.0)
        return prepare(claim, deadline)

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    async def scenario() -> None:
        async with node.registered(metrics=metrics) as (_, driver):
            threading.setprofile(record)
            sys.setprofile(record)
            try:
                for claims in ([("default", "c", "u")], [("default", "c", "u"), ("default", "d", "v")]):
                    await driver.call("prepare", claims)
                    await driver.call("unprepare", claims)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)

    monkeypatch.setattr(node.devices, "prepare", with_phase)
    asyncio.run(scenario())
    assert any(name.endswith("kubelet_plugin/operations.py") for name in called), "calls were not recorded"
    assert any(name.endswith("metrics/registry.py") for name in called)
    # The modules are loaded in this process: these calls would be possible.
    assert not [name for name in called if name.startswith(FOLDER) or name == traced.__file__]
