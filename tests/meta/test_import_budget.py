"""The modules that `import dra_agent.cli.main` may load: imports cost memory and start-up time."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaded_modules import loaded_modules

ROOT = Path(__file__).parents[2]
HEAVY = {"pynvml", "pyroute2", "prometheus_client", "psutil", "rich", "yaml", "grpc", "asyncio", "sqlite3"}


def test_standalone_mode_loads_no_kubernetes_modules() -> None:
    loaded = loaded_modules("import dra_agent.agent.agent, dra_agent.agent.standalone_mode")
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


@pytest.mark.parametrize("module", ["dra_agent", "dra_agent.cli.main", "dra_agent.cluster"])
def test_importing_loads_no_heavy_modules(module: str) -> None:
    loaded = loaded_modules(f"import {module}")
    assert HEAVY.isdisjoint(loaded), f"{module} pulls in {sorted(HEAVY & set(loaded))}"


OPTIONAL = HEAVY - {"grpc", "asyncio"} | {"lightkube", "httpx2", "email", "hashlib", "difflib", "tomllib"}
UNUSED = {"grpc.aio._server", "google.protobuf.text_format", "google.protobuf.internal.decoder", "pickle"}
"""Parts of libraries that the agent does not use."""
WITHOUT_METRICS = {"dra_agent.metrics.registry", "dra_agent.metrics.api_server", "dra_agent.metrics.snapshot"}
COMPRESSION = {"shutil", "lzma", "bz2"}


def test_kubernetes_mode_loads_only_modules_that_every_node_needs() -> None:
    loaded = loaded_modules("import dra_agent.agent.agent, dra_agent.agent.kubernetes_mode")
    unneeded = OPTIONAL | UNUSED | WITHOUT_METRICS | COMPRESSION
    assert unneeded.isdisjoint(loaded), f"it pulls in {sorted(unneeded & set(loaded))}"


def test_a_command_with_a_socket_loads_no_inventory() -> None:
    loaded = loaded_modules("import dra_agent.cli.connection, dra_agent.agent.config, dra_agent.cli.claim_apply")
    hardware = {"dra_agent.inventory.model", "dra_agent.topology", "dra_agent.nvml", "dra_agent.health.monitor"}
    assert hardware.isdisjoint(loaded), f"every command pulls in {sorted(hardware & set(loaded))}"


def test_claims_without_configuration_are_checked_without_the_set_ups() -> None:
    code = (
        "from dra_agent.cli.claim_apply import check; from dra_agent.manifests import load_manifests;"
        " check(load_manifests('examples/claims/one-gpu.yaml'), 'dra-agent.internal')"
    )
    loaded = loaded_modules(code, cwd=ROOT)
    assert "dra_agent.cli.claim_apply" in loaded
    assert "dra_agent.agent.setup_registry" not in loaded


def test_the_process_of_nvml_loads_few_modules() -> None:
    loaded = loaded_modules("from dra_agent.nvml import worker; worker._pynvml()")
    unused = {"subprocess", "shutil", "tempfile", "random", "lzma", "ctypes.util", "msgspec", "typing"}
    assert unused.isdisjoint(loaded), f"it pulls in {sorted(unused & set(loaded))}"


def test_the_agent_reads_gpus_without_pynvml(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dra_agent.simulate import build;"
        " from dra_agent.inventory.collector import Collector; from dra_agent.topology import scan;"
        " from dra_agent.inventory.settings import InventorySettings, PartitionRule;"
        " host = build('dgx-h100', Path(sys.argv[1]));"
        " collector = Collector(host, InventorySettings(partition=(PartitionRule('true', 'mig'),)));"
        " found = collector.collect(scan(host)); collector.close();"
        " assert len(found.devices) > 8, 'partitions are read too'"
    )
    loaded = loaded_modules(code, str(tmp_path))
    assert "dra_agent.inventory.collector" in loaded
    assert "pynvml" not in loaded
