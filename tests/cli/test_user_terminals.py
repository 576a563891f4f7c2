"""Terminals and pipes as users have them: other encodings, no colors, narrow windows, readers that end early."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.manifests import CLASS, claim, write
from dra_agent.cli import terminal
from eventually import DEADLINE_S

Command = Callable[..., tuple[int, str, str]]
AGENT = Path(sys.executable).with_name("dra-agent")


@pytest.mark.parametrize("command", [("topology", "--simulate", "vm-1gpu"), ("slices", "--simulate", "dgx-h100")])
def test_output_in_another_encoding_is_complete(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [AGENT, *command],
        env={**environment, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() and result.stdout and b"internal error" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["claim", "list"],
        ["claim", "holders"],
        ["devices", "--simulate", "dgx-h100"],
        ["devices", "--simulate", "dgx-h100", "gpu-0000-1b-00-0"],
        ["slices", "--simulate", "dgx-h100"],
        ["simulate", "profiles"],
        ["config", "keys"],
    ],
)
def test_lists_fit_80_columns_and_keep_ids_whole(
    command: Command, agent: object, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("claims.yaml"), CLASS, claim("train"), claim("a-claim-with-a-long-name"), claim("late"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    names = command(*words, "-o", "name")[1].split()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    code, text, _ = command(*words)
    assert code == 0 and names
    assert max(map(len, text.splitlines())) <= 80
    assert all(name.rpartition("/")[2] in text for name in names)


def test_colors_are_for_terminals_that_want_them(
    command: Command, agent: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    write(Path("claims.yaml"), CLASS, claim("train"))
    command("claim", "apply", "-f", "claims.yaml")
    assert "\x1b" not in command("claim", "list")[1], "a pipe"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m" in command("claim", "list")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", command("claim", "list")[1])


def test_a_reader_that_ends_early_ends_a_watched_list(command: Command, agent: object) -> None:
    write(Path("claims.yaml"), CLASS, claim("train"))
    command("claim", "apply", "-f", "claims.yaml")
    script = f"{AGENT} claim list --watch | head -1; echo ${{PIPESTATUS[0]}}"
    pipe = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert pipe.stdout is not None
    assert pipe.stdout.readline().startswith("NAMESPACE")
    # A change makes it write to the closed pipe.
    command("claim", "delete", "train")
    text, errors = pipe.communicate(timeout=DEADLINE_S)
    assert (text, errors) == ("0\n", "")
