"""What `import dra_agent.cli.main` may load: the import list is the agent's memory and start-up budget."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pynvml", "pyroute2", "prometheus_client", "psutil", "rich", "yaml", "grpc", "asyncio", "sqlite3"}


@pytest.mark.parametrize("module", ["dra_agent", "dra_agent.cli.main", "dra_agent.allocator"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert HEAVY.isdisjoint(loaded), f"{module} pulls in {sorted(HEAVY & set(loaded))}"
