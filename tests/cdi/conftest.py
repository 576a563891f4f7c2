"""Devices, hosts with device nodes, and the official CDI library as an oracle."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dra_agent.host import Host
from oracle import go

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "oracle" / "cdi"
LIBRARIES = {"1.1": "go.mod", "1.0": "v1.0.mod", "0.8": "v0.8.mod"}

RunOracle = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    """The generator of the example specs: it has one device of each kind."""
    location = importlib.util.spec_from_file_location("cdi_generate", ROOT / "cdi" / "generate.py")
    assert location is not None and location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "cdi" / "schema.json").read_text())
    return loaded


@pytest.fixture(scope="session", params=list(LIBRARIES))
def oracle(request: pytest.FixtureRequest) -> RunOracle:
    """Run one version of the official library: `oracle(dirs, inject=[[id, ...], ...])`."""
    modules = f"-modfile={LIBRARIES[request.param]}"
    binary = go.build(ORACLE, f"cdi-{request.param}", modules)

    def run(dirs: Sequence[Path], inject: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        query = json.dumps({"dirs": [str(path) for path in dirs], "inject": [list(ids) for ids in inject]})
        result = subprocess.run([binary], input=query, capture_output=True, text=True, check=True)
        response: dict[str, Any] = json.loads(result.stdout)
        return response

    run.version = request.param  # type: ignore[attr-defined]
    return run


@pytest.fixture
def simulated_host(tmp_path: Path) -> Host:
    """A host below a temporary directory, as an unprivileged simulation creates it."""
    host = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc")
    for root in (host.sysfs, host.dev, host.proc):
        root.mkdir()
    return host


@pytest.fixture
def make_node() -> Callable[[Path, int, int], None]:
    """Create a character device; skips without permission."""

    def make(path: Path, major: int, minor: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("creating device nodes requires root")

    return make
