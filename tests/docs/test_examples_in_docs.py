"""Runs every ```console block of the documentation and compares its output with the page.

A line `$ command` is run by bash in an empty directory with a link to `examples`; the lines below it, up to the next
command, are its output, where `...` stands for any text: alone on a line for any lines, within a line for any
characters; without such lines the output is not compared. `[exit N]` as the last line is its exit code. A page with
`<!-- agent: PROFILE -->` is run with an agent in standalone mode on that simulated host.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import preloaded
from eventually import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
AGENT = re.compile(r"<!-- agent: ([a-z0-9-]+) -->")
PLAIN = re.compile(r"dra-agent(?: +[\w./:,@+-][\w./:,@+=-]*)*", re.ASCII)
EXIT = re.compile(r"\[exit (\d+)\]")
PORT = re.compile(r"\b194\d\d\b")
"""Ports of examples."""


@dataclass
class Example:
    """One command of a page."""

    command: str
    expected: list[str]
    code: int = 0


def examples(page: Path) -> list[Example]:
    found: list[Example] = []
    for block in BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Example(line[2:], []))
            elif found and found[-1].command.endswith("\\"):
                found[-1].command += "\n" + line
            elif found and (match := EXIT.fullmatch(line)):
                found[-1].code = int(match[1])
            elif found:
                found[-1].expected.append(line.rstrip())
    return found


WITH_EXAMPLES = [page for page in PAGES if page.exists() and examples(page)]


def test_the_documentation_has_examples() -> None:
    assert WITH_EXAMPLES, "no page has a ```console block"


def test_pages_use_different_ports() -> None:
    """The examples of two pages run at the same time."""
    pages_of: dict[str, set[str]] = {}
    for page in WITH_EXAMPLES:
        for port in PORT.findall("\n".join(example.command for example in examples(page))):
            pages_of.setdefault(port, set()).add(page.name)
    assert pages_of, "no example has a port"
    assert {port: pages for port, pages in pages_of.items() if len(pages) > 1} == {}


@pytest.mark.parametrize(
    ("expected", "printed", "matches"),
    [
        ("a\n...\nb ... c", "a\nx\ny\nb zzz c", True),
        ("a\n...", "a\nx\ny", True),
        ("a\n...", "a", True),
        ("a\n...", "ab", False),
        ("...\nb", "a\nx\nb", True),
        ("a b", "a c", False),
        ("a ... b", "a \n b", False),
        ("a\n...\nb", "a\nx", False),
    ],
)
def test_three_dots_match_lines_or_characters(expected: str, printed: str, matches: bool) -> None:
    assert bool(re.fullmatch(pattern(expected), printed)) == matches


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_print_the_shown_output(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{preloaded.program_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DRA_AGENT_STATE_DIR": str(tmp_path / "state"),
        "DRA_AGENT_CDI_DIR": str(tmp_path / "cdi"),
        "DRA_AGENT_NODE_NAME": "node-1",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    profile = AGENT.search(page.read_text())
    with killed_at_the_end(tmp_path), running_agent(profile[1] if profile else None, tmp_path, environment):
        for example in examples(page):
            result = run(example.command, tmp_path, environment)
            printed = (result.stdout + result.stderr).rstrip().splitlines()
            output = "\n".join(printed)
            assert result.returncode == example.code, (
                f"$ {example.command}\n{output}\n[exit {result.returncode}]\n{logs(tmp_path)}"
            )
            if not example.expected:
                continue
            expected_pattern = pattern("\n".join(example.expected).rstrip())
            assert re.fullmatch(expected_pattern, "\n".join(line.rstrip() for line in printed)), (
                f"$ {example.command}\nprints:\n{output}\n\nbut {page.name} shows:\n"
                + "\n".join(example.expected)
                + f"\n\n{logs(tmp_path)}"
            )


def logs(directory: Path) -> str:
    """Return the last lines of every log of a page, each with its name."""
    return "\n".join(
        f"{log.name}: {line}"
        for log in sorted(directory.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()[-10:]
    )


def run(command: str, directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line as bash does. One that is a command of the agent and plain words needs no bash."""
    if PLAIN.fullmatch(command):
        return preloaded.run(command.split()[1:], env=environment, cwd=directory)
    whole = ["bash", "-c", command]
    return subprocess.run(whole, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)


def pattern(expected: str) -> str:
    """Return a regular expression in which `...` matches any text."""
    anything = re.escape(expected).replace(re.escape("..."), "\0")
    # At the end, no lines need not even have the end of the line before them.
    anything = re.sub(r"\\?\n\0$", lambda _: r"(?:\n[^\0]*)?", anything)
    anything = re.sub(r"(^|\n)\0(?=\\?\n|$)", lambda m: m[1] + r"(?:[^\0]*?)", anything)
    return anything.replace("\0", "[^\n]*").replace("\\\n", "\n")


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(os.fspath(path)) == 0


@contextmanager
def running_agent(profile: str | None, directory: Path, environment: dict[str, str]) -> Iterator[None]:
    if profile is None:
        yield
        return
    (directory / "state").mkdir()
    (directory / "cdi").mkdir()
    log = (directory / "agent.log").open("wb")
    command = ["run", "--standalone", "--simulate", profile]
    agent = preloaded.Command(command, stdout=log, stderr=log, env=environment)
    log.close()
    try:
        path, log_file = directory / "state" / "agent.sock", directory / "agent.log"
        # A socket has its path a moment before the agent listens on it.
        eventually(lambda: listens(path) or agent.poll() is not None, log_file.read_text)
        assert agent.poll() is None, log_file.read_text()
        yield
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(DEADLINE_S)


@contextmanager
def killed_at_the_end(directory: Path) -> Iterator[None]:
    """Kill the agents that a page has started itself and not stopped; the pid is in the lock while one runs."""
    try:
        yield
    finally:
        for lock in directory.glob("*/agent.lock"):
            pid = lock.read_text().strip()
            command = Path(f"/proc/{pid}/cmdline")
            if pid.isdigit() and command.exists() and b"preloaded/server.py" in command.read_bytes():
                os.kill(int(pid), signal.SIGKILL)
