"""Completion: candidates of the commands and the agent, and the scripts in real shells."""

from __future__ import annotations

import argparse
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
from dra_agent.cli.completion import ValueCompleter, script
from dra_agent.cli.parser import build_parser, leaves
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from eventually import DEADLINE_S, eventually

Command = Callable[..., tuple[int, str, str]]
BIN = Path(sys.executable).parent


def complete(line: str) -> list[str]:
    """The candidates for the last word of a line, as the script of fish asks for them."""
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "fish"}
    variables |= {"_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": "candidates"}
    variables |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([BIN / "dra-agent"], env={**os.environ, **variables}, check=True, timeout=DEADLINE_S)
    return Path("candidates").read_text().splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dra-agent dev", ["devices"]),
        ("dra-agent claim r", ["release", "run"]),
        ("dra-agent reclaim ", ["cancel", "start", "status"]),
        ("dra-agent claim get --ig", ["--ignore-not-found"]),
        ("dra-agent doctor --bu", ["--bundle"]),
        ("dra-agent devices -o js", ["json"]),
        ("dra-agent devices --output=js", ["--output=json"]),
        ("dra-agent claim get -o c", ["cdi"]),
        ("dra-agent run --log-level ", ["debug", "error", "info", "warning"]),
        ("dra-agent run --claim-status=n", ["--claim-status=nics"]),
        ("dra-agent claim apply -f ma", ["manifest.yaml", "manifests/"]),
        ("dra-agent devices --state-dir ma", ["manifests/"]),
        ("dra-agent claim run -f x -- env ma", ["manifest.yaml", "manifests/"]),
        ("dra-agent devices --simulate dgx-h1", ["dgx-h100"]),
        ("dra-agent devices --simulate ma", ["manifests/"]),
        ("dra-agent simulate build dgx-h1", ["dgx-h100"]),
        ("dra-agent claim get tr", []),
        ("make && sudo dra-agent recl", ["reclaim"]),
    ],
)
def test_candidates_are_those_of_the_command(command: Command, line: str, expected: list[str]) -> None:
    Path("manifest.yaml").touch()
    Path("manifests").mkdir()
    assert sorted(complete(line)) == expected


@pytest.fixture
def claims(command: Command, agent: object, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("dra_agent.cli.completion.TIMEOUT_S", DEADLINE_S)
    write(Path("claims.yaml"), CLASS, claim("train"), claim("tune", namespace="team-a"))
    assert command("claim", "apply", "-f", "claims.yaml")[0] == 0
    return command


@pytest.mark.parametrize("verb", ["claim get", "claim wait", "claim delete", "explain", "cdi show", "claim release"])
def test_names_of_claims_come_from_the_agent(claims: Command, verb: str) -> None:
    parser = dict(leaves(build_parser(verb.partition(" ")[0])))[tuple(verb.split())]
    (positional,) = (action for action in parser.arguments if not action.option_strings)
    for action, expected in (
        (positional, {"train": "Prepared", "team-a/tune": "Prepared"}),
        (dict(leaves(build_parser("claim")))["claim", "list"].flags["-n"], {"default": "", "team-a": ""}),
    ):
        found = ValueCompleter()(prefix="", action=action, parser=parser, parsed_args=argparse.Namespace())
        assert found == expected


def test_no_candidate_controls_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    with JournalLedger(tmp_path / "state", "boot") as ledger:
        for uid, name in (("a", "train"), ("b", "tr\x1b]0;title\x07"), ("c", "tr\u202etxt"), ("d", "tr\nain")):
            device = HeldDevice("node/gpu", f"gpu-{uid}", "gpu")
            ledger.start(LedgerEntry(uid, "default", name, (device,)), durable=True)
    parser = dict(leaves(build_parser("claim")))["claim", "release"]
    (positional,) = (action for action in parser.arguments if not action.option_strings)
    found = ValueCompleter()(prefix="", action=positional, parser=parser, parsed_args=argparse.Namespace())
    assert found == {"train": "started"}

    monkeypatch.chdir(tmp_path)
    for file in ("manifest.yaml", "man\x1b[2J.yaml", "man\u202efdp.yaml"):
        Path(file).touch()
    assert complete("dra-agent claim apply -f man") == ["manifest.yaml"]


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
        ("claim get tr", "train \n"),
        ("devices --output=js", "json \n"),
        ("recl", "reclaim \n"),
        ("claim apply -f claims.", "claims.yaml \n"),
    ],
)
def test_bash_completes(claims: Command, words: str, expected: str) -> None:
    Path("script").write_text(script("bash"))
    line = (
        f"source ./script; COMP_LINE='dra-agent {words}'; COMP_POINT=${{#COMP_LINE}}; "
        'function="$(complete -p dra-agent)"; function="${function##*-F }"; "${function%% *}" dra-agent; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
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
