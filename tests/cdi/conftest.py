"""Devices, hosts with device nodes, and the official CDI library as an oracle."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dra_agent.host import Host

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
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed, so the official CDI library cannot be asked")
    modfile = LIBRARIES[request.param]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    download = subprocess.run(
        [go, "mod", "download", f"-modfile={modfile}"], cwd=ORACLE, env=environment, capture_output=True, text=True
    )
    if download.returncode:
        pytest.skip(f"the official CDI library cannot be downloaded: {download.stderr.strip()}")
    program = tmp_path_factory.mktemp("oracle") / f"cdi-{request.param}"
    subprocess.run([go, "build", f"-modfile={modfile}", "-o", program, "."], cwd=ORACLE, env=environment, check=True)

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
