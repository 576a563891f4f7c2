"""Completion: candidates of the parser and the agent, and the scripts in real shells."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.manifests import CLASS, claim, write
from dra_agent.cli.completion import script
from dra_agent.cli.parser import build_parser, flags_of, leaves
from eventually import DEADLINE_S, eventually

Command = Callable[..., tuple[int, str, str]]
BIN = Path(sys.executable).parent


def complete(command: Command, line: str) -> list[str]:
    """The candidates for the last word of a line."""
    code, text, errors = command("completion", "words", "--", *line.split(" "))
    assert (code, errors) == (0, "")
    return [candidate.partition("\t")[0] for candidate in text.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dev", ["devices"]),
        ("claim r", ["release", "run"]),
        ("reclaim ", ["cancel", "start", "status"]),
        ("claim get --ig", ["--ignore-not-found"]),
        ("devices -o js", ["json"]),
        ("devices --output=js", ["--output=json"]),
        ("claim get -o c", ["cdi"]),
        ("devices --family g", ["gpu"]),
        ("run --log-level ", ["debug", "info", "warning", "error"]),
        ("run --second-manager r", ["refuse"]),
        ("run --claim-status=n", ["--claim-status=nics"]),
        ("claim apply -f ", [":files"]),
        ("devices --state-dir /v", [":directories"]),
        ("claim run -f x -- pod", [":files"]),
        ("devices --simulate dgx-h1", ["dgx-h100", ":directories"]),
        ("simulate build dgx-h1", ["dgx-h100"]),
        ("nope ", []),
        ("claim get tr", []),
    ],
)
def test_candidates_are_those_of_the_parser(command: Command, line: str, expected: list[str]) -> None:
    assert sorted(complete(command, line)) == sorted(expected)


@pytest.mark.parametrize("words", [words for words, _ in leaves(build_parser())], ids=" ".join)
def test_every_flag_of_every_command_is_a_candidate(command: Command, words: tuple[str, ...]) -> None:
    parser = dict(leaves(build_parser(words[0])))[words]
    flags = {flag for flag in flags_of(parser) if flag.startswith("--") and "=" not in flag}
    assert set(complete(command, " ".join([*words, "--"]))) == flags


@pytest.fixture
def claims(command: Command, agent: object, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("dra_agent.cli.completion.TIMEOUT_S", DEADLINE_S)
    write(Path("claims.yaml"), CLASS, claim("train"), claim("tune", namespace="team-a"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    return command


@pytest.mark.parametrize("verb", ["claim get", "claim wait", "claim delete", "explain", "cdi show", "claim release"])
def test_names_of_claims_come_from_the_agent(claims: Command, verb: str) -> None:
    assert complete(claims, f"{verb} t") == ["team-a/tune", "train"]
    assert complete(claims, "claim list -n t") == ["team-a"]


def shell(name: str, line: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}
    command = [name, *(["--norc"] if name == "bash" else ["--no-config"]), "-c", line]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["claim", "get", "tr"], "train\n"),
        (["devices", "--output", "=", "js"], "json\n"),
        (["recl"], "reclaim\n"),
        (["claim", "apply", "-f", "claims."], "claims.yaml\n"),
    ],
)
def test_bash_completes(claims: Command, words: list[str], expected: str) -> None:
    Path("script").write_text(script("bash"))
    line = (
        f"compopt() {{ :; }}; source ./script; COMP_WORDS=(dra-agent {' '.join(words)}); COMP_CWORD={len(words)}; "
        f'_dra_agent_complete dra-agent "{words[-1]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    assert shell("bash", line) == expected


def test_fish_completes_with_descriptions(claims: Command) -> None:
    Path("script").write_text(script("fish"))
    line = "source ./script; complete -C 'dra-agent claim get tr'; complete -C 'dra-agent recl'"
    expected = ["train\tPrepared", "reclaim\tstart, cancel or show the reclaim of this node"]
    assert shell("fish", line).splitlines() == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(claims: Command) -> None:
    Path("script").write_text(script("zsh"))
    master, slave = pty.openpty()
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "ready> "}
    process = subprocess.Popen(["zsh", "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = bytearray()

    def read() -> None:
        try:
            while part := os.read(master, 4096):
                seen.extend(part)
        except OSError:
            return  # the shell has ended

    reader = threading.Thread(target=read)
    reader.start()
    try:
        os.write(master, b"autoload -U compinit && compinit -u -D && source ./script && print loa''ded\n")
        eventually(lambda: b"loaded" in seen, lambda: seen.decode(errors="replace"))
        os.write(master, b"dra-agent claim get tr\t")
        eventually(lambda: b"claim get train" in seen, lambda: seen.decode(errors="replace"))
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        reader.join(DEADLINE_S)
        os.close(master)
