"""Programs are found in the absolute directories of PATH, and never in the current one."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dra_agent
from dra_agent.cdi import runtime
from dra_agent.doctor import CommandRunner
from dra_agent.doctor.bundle import MissingPartError, logs
from dra_agent.doctor.record.tools import find_tool
from dra_agent.host import Host
from dra_agent.kube_client.config import ClientConfig, ExecCommand
from dra_agent.kube_client.credentials import run_command
from dra_agent.kube_client.errors import UnavailableError
from dra_agent.path_search import executable, find_program
from dra_agent.reclaim.standalone import run_hooks
from eventually import DEADLINE_S


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return two folders, which are PATH in this order after one that does not exist."""
    found = [tmp_path / "first", tmp_path / "second"]
    for folder in found:
        folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (tmp_path / "missing", *found))))
    return found


def put(folder: Path, *, mode: int = 0o755) -> Path:
    program = folder / "tool"
    program.touch()
    program.chmod(mode)
    return program


def test_the_first_one_in_path_is_found(folders: list[Path]) -> None:
    first, second = map(put, folders)
    assert find_program("tool") == first
    first.unlink()
    assert find_program("tool") == second


def test_what_cannot_be_executed_is_skipped(folders: list[Path]) -> None:
    put(folders[0], mode=0o644)
    assert find_program("tool") is None
    program = put(folders[1])
    assert find_program("tool") == program


def test_a_folder_is_not_a_program(folders: list[Path]) -> None:
    (folders[0] / "tool").mkdir()
    assert find_program("tool") is None


@pytest.mark.parametrize("path", ["", os.pathsep, ".", "../first"])
def test_an_empty_or_relative_entry_is_not_searched(
    path: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folders[0])
    monkeypatch.chdir(folders[0])
    monkeypatch.setenv("PATH", path)
    assert find_program("tool") is None


def test_directories_of_the_system_are_searched_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_program("sh") is None
    assert find_program("sh", system=True) is not None


def test_a_command_with_a_slash_is_a_path(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    program = put(folders[0])
    assert executable("./anything") == "./anything"
    assert executable("tool") == str(program)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError) as missing:
        executable("tool")
    assert missing.value.strerror == "No such file or directory in PATH" and missing.value.filename == "tool"


PROGRAMS = (
    *("busybox", "unshare", "podman", "crun", "ctr", "containerd", "crio", "dockerd", "systemctl", "journalctl"),
    *("dmesg", "lspci", "nvidia-smi", "nvidia-ctk", "rocm-smi", "amd-smi", "xpu-smi", "login-tool", "mount", "mkdir"),
)


@pytest.fixture
def hostile_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a program of every name that leaves a file."""
    folder = tmp_path / "of-a-user"
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/ran\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("path", ["", f":.:{os.defpath}:"], ids=["empty", "with entries"])
def test_no_program_of_the_current_directory_is_run(
    hostile_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PATH", path)
    commands = CommandRunner()
    for name in PROGRAMS:
        found = commands.find(name)
        assert found is None or (Path(found).is_absolute() and hostile_directory not in Path(found).parents)
        tool = find_tool(Host(), name)
        assert tool is None or hostile_directory not in tool.parents
    assert commands.run(["/bin/sh", "-c", "login-tool"]).code == 127
    for read in (logs.read_journal, logs.read_kernel_log):
        with suppress(MissingPartError):
            read()
    rootfs = runtime.make_rootfs(tmp_path / "rootfs") or tmp_path
    runtime.find(rootfs, tmp_path / "cdi")
    client = ClientConfig("https://127.0.0.1:1", "kubeconfig")
    with pytest.raises(UnavailableError, match="No such file or directory in PATH"):
        asyncio.run(run_command(ExecCommand("login-tool", "client.authentication.k8s.io/v1"), client))
    assert asyncio.run(run_hooks(["login-tool"], [{"DRA_AGENT_CLAIM_UID": "a"}], DEADLINE_S)) == {
        "a": "its hook cannot be run: No such file or directory in PATH"
    }
    assert not (tmp_path / "ran").exists()


OWN_LOOKUPS = re.compile(
    r"\bshutil\.which\b|\bimport which\b|\bos\.(?:exec[vl]p|spawn[vl]p|posix_spawnp|system|popen)"
    r"|\bget(?:status)?output\b|\bcreate_subprocess_shell\b|\bshell=True\b"
)
STARTS = frozenset({"run", "Popen", "call", "check_call", "check_output", "create_subprocess_exec"})
NAMED_BY_PATH = {
    "dra_agent/command.py": "HostCommand takes a path",
    "dra_agent/nvml/client.py": "the interpreter, by child.command",
    "dra_agent/device_setup/sysfs_writer.py": "the interpreter, by child.command",
    "dra_agent/doctor/context.py": "what CommandRunner.find returned",
    "dra_agent/cdi/runtime.py": "what find_program returned",
    "dra_agent/cli/cdi.py": "what find_program returned, through cdi/runtime.py",
}
"""The modules that start a process without `executable`, and where its path is from."""


def starts(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that start a process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STARTS:
            module = ast.unparse(node.func.value)
            if module == "subprocess" or (module == "asyncio" and node.func.attr != "run"):
                yield node


def test_no_module_has_its_own_lookup() -> None:
    package = Path(dra_agent.__file__).parents[1]
    sources = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    assert {name: found[0] for name, text in sources.items() if (found := OWN_LOOKUPS.search(text))} == {}
    without_path = set()
    for name, text in sources.items():
        for call in starts(ast.parse(text)):
            path = next((ast.unparse(one.value) for one in call.keywords if one.arg == "executable"), "")
            if not path.startswith("executable("):
                without_path.add(name)
    assert without_path == set(NAMED_BY_PATH)


@pytest.mark.parametrize("name", ["sh", "no-such-program"])
def test_it_finds_what_the_standard_library_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (os.defpath, None):
        if path is None:
            monkeypatch.delenv("PATH")
        else:
            monkeypatch.setenv("PATH", path)
        found = shutil.which(name)
        assert find_program(name) == (None if found is None else Path(found))
