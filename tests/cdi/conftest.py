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

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    """The generator of the example specs: its devices stand for one of each kind."""
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
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask one version of the official library: `oracle(dirs, inject=[[id, ...], ...])`."""
    modules = f"-modfile={LIBRARIES[request.param]}"
    program = go.build(ORACLE, tmp_path_factory.mktemp("oracle") / f"cdi-{request.param}", modules)

    def ask(dirs: Sequence[Path], inject: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        question = json.dumps({"dirs": [str(path) for path in dirs], "inject": [list(ids) for ids in inject]})
        result = subprocess.run([program], input=question, capture_output=True, text=True, check=True)
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    ask.version = request.param  # type: ignore[attr-defined]
    return ask


@pytest.fixture
def simulated_host(tmp_path: Path) -> Host:
    """A host below a folder, as an unprivileged simulation makes it."""
    host = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc")
    for root in (host.sysfs, host.dev, host.proc):
        root.mkdir()
    return host


@pytest.fixture
def make_node() -> Callable[[Path, int, int], None]:
    """Make a character device; skip where that is not allowed."""

    def make(path: Path, major: int, minor: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("making device nodes takes root")

    return make
