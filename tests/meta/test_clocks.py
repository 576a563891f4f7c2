"""Durations are not measured by the wall clock, which can step. Modules that need it are listed with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import dra_agent

PYTHON = Path(dra_agent.__file__).parents[1]

WALL_TIME = {
    "clock.py": "the one place where wall time and time since boot meet",
    "agent/rolling_update.py": "age of a file: modification times are wall time",
    "metrics/registry.py": "age of a file: modification times are wall time",
    "kubelet_plugin/sockets.py": "age of a file: modification times are wall time",
    "kubelet_plugin/registration.py": "a moment that people are shown",
    "publish/stats.py": "a moment that is exported as a metric",
    "agent/reload.py": "a moment that is exported as a metric",
    "kube_client/errors.py": "Retry-After can be a date",
    "kube_client/credentials.py": "credentials expire at a moment of the wall clock",
    "standalone/intake.py": "creationTimestamp of an object",
    "standalone/claim.py": "creationTimestamp of an object",
    "otlp/spans.py": "moments that are exported as spans",
    "otlp/exporter.py": "a moment that is exported as a metric",
    "doctor/endpoint.py": "certificates expire at a moment of the wall clock",
    "dra_simulate/inject/usage.py": "another process, which has only this clock in common, plays a schedule",
    "webhook/clients.py": "certificates expire at a moment of the wall clock",
    "status/claim_status.py": "lastTransitionTime of a condition",
    "doctor/bundle/collector.py": "a moment that people are shown",
    "doctor/record/recorder.py": "a moment that people are shown",
    "telemetry/sources/nvidia_processes.py": "samples of NVML have the time of the CPU in the wall clock",
}
_FORBIDDEN = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def wall_clock_uses(tree: ast.AST) -> list[int]:
    """Return the lines that read the wall clock, or pass on a function that does."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if (name, node.attr) in _FORBIDDEN:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for one in node.names if one.name in ("time", "time_ns")]
    return lines


def test_the_wall_clock_is_read_only_where_wall_time_is_needed() -> None:
    found = {}
    for path in sorted(PYTHON.rglob("*.py")):
        if "_pb2" not in path.name and (lines := wall_clock_uses(ast.parse(path.read_text()))):
            found[str(path.relative_to(PYTHON)).removeprefix("dra_agent/")] = lines
    unexpected = {path: lines for path, lines in found.items() if path not in WALL_TIME}
    assert not unexpected, f"measure durations by dra_agent.clock, or give the reason in WALL_TIME: {unexpected}"


def test_every_way_to_read_the_wall_clock_is_found() -> None:
    for source in (
        "import time; time.time()",
        "import time; clock = time.time",
        "from time import time",
        "from datetime import datetime, UTC; datetime.now(UTC)",
        "import datetime; datetime.datetime.now()",
        "import time; time.time_ns()",
    ):
        assert wall_clock_uses(ast.parse(source)), source
    assert not wall_clock_uses(ast.parse("import time; time.monotonic(); time.clock_gettime(time.CLOCK_BOOTTIME)"))
