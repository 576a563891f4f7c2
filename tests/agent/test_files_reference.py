"""docs/reference/files.md has every file of a running agent, with its mode, and every path in the code."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import preloaded
from agent.conftest import Start
from eventually import eventually
from fake_apiserver.fake import FakeApi

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/dra_agent"
PAGE = ROOT / "docs/reference/files.md"
DRIVER = "dra-agent.internal"
ROW = re.compile(r"^\| (`.*?`) \| (\d{4})? ?\| ", re.MULTILINE)
NOT_OF_THE_AGENT = ("doctor", "cli", "recording.py", "user_file.py")
"""Commands, and recordings, which contain whole trees."""
CONFIG = "[telemetry]\ninterval = 1\n"


def documented() -> list[tuple[str, int | None]]:
    """Return the patterns of paths that the agent writes, with their modes."""
    written = PAGE.read_text().partition("## Read")[0]
    return [
        (path.replace("DRIVER", DRIVER), int(mode, 8) if mode else None)
        for cell, mode in ROW.findall(written)
        for path in re.findall(r"`([^`]+)`", cell)
    ]


def modes_of(path: str) -> set[int | None]:
    return {mode for pattern, mode in documented() if fnmatchcase(path, pattern)}


def files(folder: Path, name: str) -> Iterator[tuple[str, int]]:
    """Yield the files and sockets below a directory, as `name`/PATH, with their modes."""
    for directory, below, names in os.walk(folder):
        below[:] = [one for one in below if one != "simulated"]
        for one in names:
            path = Path(directory, one)
            try:
                mode = stat.S_IMODE(path.lstat().st_mode)
            except FileNotFoundError:
                continue  # The agent replaces and removes files while they are listed.
            if not one.endswith(".tmp"):
                yield f"{name}/{path.relative_to(folder)}", mode


def differences(found: dict[str, int], *, standalone: bool) -> list[str]:
    """Describe files that the page does not have, or has with another mode. In standalone mode HOST is STATE."""
    wrong = []
    for path, mode in found.items():
        names = [path, path.replace("STATE", "HOST", 1)] if standalone else [path]
        modes = set().union(*map(modes_of, names))
        if modes != {mode}:
            wrong.append(f"{path} has the mode {mode:o}; the page has {modes or 'no such file'}")
    return wrong


def test_the_page_has_the_files_of_an_agent_without_kubernetes(start: Start, state: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    start("--config", str(config), "--device-metadata").ready()
    environment = {**os.environ, "DRA_AGENT_STATE_DIR": str(state)}
    for words in (["claim", "apply", "-f", str(ROOT / "examples/notice/class.yaml")], ["reclaim", "start", "--hint"]):
        done = preloaded.run(words, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    expected = {"agent.sock", "agent.lock", "objects.db", "reclaim.json", "telemetry.json", "top.sock", "ledger"}
    eventually(lambda: expected <= {path.name for path in state.iterdir()})
    # A command may return before the claim is prepared.
    eventually(lambda: [*state.glob("notices/*/notice.json")] and [*state.glob("dra-device-metadata/*/*.json")])
    eventually(lambda: [*(tmp_path / "cdi").glob(f"{DRIVER}-claim_*.json")])
    found = {**dict(files(state, "STATE")), **dict(files(tmp_path / "cdi", "/var/run/cdi"))}
    assert not differences(found, standalone=True)


def test_the_page_has_the_files_of_an_agent_in_a_cluster(
    start: Start, state: Path, tmp_path: Path, kubelet_dir: Path, fake_api: FakeApi
) -> None:
    credentials = fake_api.kubeconfig(tmp_path / "kubeconfig")
    flags = ("--no-standalone", "--kubelet-dir", str(kubelet_dir), "--kubeconfig", str(credentials))
    start(*flags, "--pod-uid", "1").ready()
    folders = {"STATE": state, "HOST": kubelet_dir / "plugins" / DRIVER, "KUBELET": kubelet_dir}
    found = dict(file for name, folder in folders.items() for file in files(folder, name))
    sockets = {path.replace("dra-1.sock", "dra.sock").replace(f"{DRIVER}-1-", f"{DRIVER}-") for path in found}
    assert {"STATE/claims.sock", f"KUBELET/plugins/{DRIVER}/dra.sock"} <= sockets
    assert any(path.startswith("STATE/instances/") for path in found)
    wrong = [
        path
        for path in sockets
        if not modes_of(path)
        and not modes_of(path.replace(f"KUBELET/plugins/{DRIVER}", "HOST"))
        and not modes_of(path.replace("HOST", f"KUBELET/plugins/{DRIVER}"))
    ]
    assert not wrong, "the page does not have these"
    assert not differences({path: mode for path, mode in found.items() if path.startswith("STATE")}, standalone=False)


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def paths_of(tree: ast.AST) -> Iterator[str]:
    """Yield the absolute paths outside of kernel file systems, and the names of state files and sockets, in code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Path" and len(node.args) == 1:
            path = text_of(node.args[0])
            if path.startswith("/") and not path.startswith(("/proc", "/sys", "/dev", "/nonexistent")):
                yield path
        elif re.fullmatch(r"[a-z][\w-]*\.(sock|db|lock|json)", text_of(node)):
            yield text_of(node)


def test_the_page_has_every_absolute_path_and_every_state_file_of_the_code() -> None:
    page = PAGE.read_text()
    found = [
        (path.name, name)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in NOT_OF_THE_AGENT
        for name in paths_of(ast.parse(path.read_text()))
    ]
    assert len(found) > 30
    assert not [one for one in found if one[1] not in page]
