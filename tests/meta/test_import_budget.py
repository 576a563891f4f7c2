"""What `import dra_agent.cli.main` may load: the import list is the agent's memory and start-up budget."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pynvml", "pyroute2", "prometheus_client", "psutil", "rich", "yaml", "grpc", "asyncio", "sqlite3"}


def test_standalone_mode_loads_nothing_of_kubernetes() -> None:
    code = "import sys, dra_agent.agent.agent, dra_agent.agent.standalone_mode; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    kubernetes = {
        "grpc",
        "google.protobuf",
        "lightkube",
        "httpx2",
        "h11",
        "dra_agent.kubelet_plugin",
        "dra_agent.kube_client",
    }
    assert kubernetes.isdisjoint(loaded), f"standalone mode pulls in {sorted(kubernetes & set(loaded))}"


@pytest.mark.parametrize("module", ["dra_agent", "dra_agent.cli.main", "dra_agent.allocator"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert HEAVY.isdisjoint(loaded), f"{module} pulls in {sorted(HEAVY & set(loaded))}"


FOR_OTHERS = HEAVY - {"grpc", "asyncio"} | {"lightkube", "httpx2", "email", "hashlib", "difflib", "tomllib"}


def test_an_agent_of_kubernetes_loads_only_what_every_node_needs() -> None:
    code = "import sys, dra_agent.agent.kubernetes_mode; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert FOR_OTHERS.isdisjoint(loaded), f"it pulls in {sorted(FOR_OTHERS & set(loaded))}"
