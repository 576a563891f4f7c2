"""The modules that `import dra_agent.cli.main` may load: imports cost memory and start-up time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pynvml", "pyroute2", "prometheus_client", "psutil", "rich", "yaml", "grpc", "asyncio", "sqlite3"}


def test_standalone_mode_loads_no_kubernetes_modules() -> None:
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
def test_importing_loads_no_heavy_modules(module: str) -> None:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert HEAVY.isdisjoint(loaded), f"{module} pulls in {sorted(HEAVY & set(loaded))}"


OPTIONAL = HEAVY - {"grpc", "asyncio"} | {"lightkube", "httpx2", "email", "hashlib", "difflib", "tomllib"}


def test_kubernetes_mode_loads_only_modules_that_every_node_needs() -> None:
    code = "import sys, dra_agent.agent.kubernetes_mode; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert OPTIONAL.isdisjoint(loaded), f"it pulls in {sorted(OPTIONAL & set(loaded))}"
