"""Text of claims, containers and devices cannot control the administrator's terminal."""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.progress import Progress, TextColumn

from dra_agent.agent import signals
from dra_agent.agent.logs import JsonFormatter, TextFormatter
from dra_agent.cli.main import main
from dra_agent.cli.output import emit
from dra_agent.cli.parser import COMMANDS, command_module
from dra_agent.cli.table import table
from dra_agent.cli.terminal import console, progress
from dra_agent.errors import AgentError, PermanentError, UsageError
from dra_agent.printable import printable

ROOT = Path(__file__).resolve().parents[2]
AGENT = Path(sys.executable).with_name("dra-agent")
LINK = "\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\"
TITLE = "\x1b]0;owned\x07"
HOSTILE = f"a{LINK}{TITLE}\x1b[2J\x1b[1;1Hb\x9b31mc\u202edcba\u2066e\rf\x7f\x08g\udc80h\u2028i\U000e0041"
"""OSC 8, OSC 0, CSI, C1, bidirectional controls, carriage return, DEL, backspace, a lone surrogate, tags."""
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
DEADLINE_S = 60


def assert_harmless(text: str) -> None:
    found = RAW.search(text)
    assert found is None, f"{found!r} in {text!r}"


def test_unprintable_characters_are_escaped() -> None:
    assert printable("\x1b[31mred\x9b\u202e") == "\\x1b[31mred\\x9b\\u202e"
    assert (
        printable("two\nlines\tand\u00a0a wide\u3000space: ä, 設備, 🙂")
        == "two\nlines\tand\u00a0a wide\u3000space: ä, 設備, 🙂"
    )
    assert printable("two\nlines", line=True) == "two\\nlines"
    assert printable("x" * 100, longest=10) == "xxxxxxx..."
    assert_harmless(printable(HOSTILE))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_prints_control_characters(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = command_module(command)

    def run(args: argparse.Namespace) -> int:
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.write(HOSTILE)
        table(("name", HOSTILE), [(HOSTILE, "x")], title=HOSTILE)
        with progress(HOSTILE):
            pass
        for output in ("json", "yaml"):
            emit({HOSTILE.replace("\udc80", ""): [HOSTILE.replace("\udc80", "")]}, output)
        return 0

    monkeypatch.setattr(module, "add_arguments", lambda parser: None)
    monkeypatch.setattr(module, "run", run)
    # A service handles the signals of its process until it ends; this process is pytest's.
    monkeypatch.setattr(signals, "install", lambda: None)
    assert main([command]) == 0
    captured = capsys.readouterr()
    assert "\\x1b]8;;https://evil.example/" in captured.out
    assert_harmless(captured.out)
    assert_harmless(captured.err)


@pytest.mark.parametrize("error", [PermanentError, UsageError, ValueError])
def test_no_error_prints_control_characters(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("dra_agent.cli.devices")

    def run(args: argparse.Namespace) -> int:
        if issubclass(error, AgentError):
            raise error(HOSTILE, where=HOSTILE, hint=HOSTILE)
        raise error(HOSTILE)

    monkeypatch.setattr(module, "run", run)
    assert main(["devices"]) in (1, 2)
    captured = capsys.readouterr()
    assert "\\x1b[2J" in captured.err
    assert_harmless(captured.err)


def test_error_messages_are_escaped() -> None:
    assert_harmless(str(PermanentError(HOSTILE, where=HOSTILE, hint=HOSTILE)))


def test_table_colors_reach_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module("dra_agent.cli.devices")

    def run(args: argparse.Namespace) -> int:
        table(("name",), [(LINK,)])
        return 0

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert "\x1b[1mNAME" in text
    assert "\x1b]" not in text and "\\x1b]8" in text


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def show_in_status(text: str) -> None:
    with progress(text):
        pass


def show_in_bar(text: str) -> None:
    """As `reclaim --watch` does."""
    with Progress(TextColumn("{task.fields[rest]}", markup=False), console=console(stderr=True)) as bar:
        bar.add_task("claims released", total=None, rest=text)


@pytest.mark.parametrize("show", [show_in_status, show_in_bar])
def test_live_lines_escape_their_text(monkeypatch: pytest.MonkeyPatch, show: Callable[[str], None]) -> None:
    """Their own control codes move the cursor and reach the terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "1000")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show(f"[/x] {HOSTILE}")
    text = terminal.getvalue()
    assert "\x1b[" in text and "[/x] a\\x1b]8;;https://evil.example/" in text
    own_codes = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]|\r")
    assert_harmless(own_codes.sub("", text))
    assert "\x1b[2J" not in text and "\x1b[1;1H" not in text


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_json_and_yaml_keep_the_values(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "name": HOSTILE.replace("\udc80", ""),
        "plain": "ä\u00a0設備\u3000\nnext",
        "tags": ["\U000e0041", "\u202e"],
    }
    emit(value, output)
    text = capsys.readouterr().out
    assert_harmless(text)
    assert (json.loads(text) if output == "json" else yaml.safe_load(text)) == value


@pytest.mark.parametrize("journal", [False, True])
def test_text_logs_have_no_control_characters_and_no_forged_lines(journal: bool) -> None:
    record = logging.makeLogRecord(
        {"msg": f"{HOSTILE}\n<0>forged", "levelno": logging.INFO, "levelname": "INFO", "claim": f"{HOSTILE}\nforged"}
    )
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = TextFormatter(journal=journal).format(record)
    assert_harmless(text)
    assert not any(line.startswith(("forged", "<0>")) for line in text.splitlines())


def test_json_logs_keep_the_values() -> None:
    text = JsonFormatter().format(logging.makeLogRecord({"msg": HOSTILE.replace("\udc80", ""), "claim": "\x9b\u202e"}))
    assert_harmless(text)
    assert json.loads(text)["message"] == HOSTILE.replace("\udc80", "")
    assert json.loads(text)["claim"] == "\x9b\u202e"


def claim(expression: str) -> str:
    return json.dumps(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "default", "labels": {"x": HOSTILE.replace("\udc80", "")}},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "gpu",
                            "exactly": {
                                "deviceClassName": HOSTILE.replace("\udc80", ""),
                                "selectors": [{"cel": {"expression": expression}}],
                            },
                        }
                    ]
                }
            },
        }
    )


def test_escape_sequences_in_a_claim_are_escaped_by_every_command(tmp_path: Path) -> None:
    hostile = HOSTILE.replace("\udc80", "")
    (tmp_path / "claim.json").write_text(claim(f'device.driver == "{LINK}"'))
    (tmp_path / "slices.json").write_text(
        json.dumps(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "s"},
                "spec": {
                    "driver": "dra-agent.internal",
                    "nodeName": "node",
                    "pool": {"name": f"node/{hostile}", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "gpu-0", "attributes": {"type": {"string": hostile}}}],
                },
            }
        )
    )
    for arguments in (
        ("explain", "-f", "claim.json", "--slices", "slices.json", "--all-devices"),
        ("config", "check", "-f", "claim.json"),
        ("claim", "apply", "-f", "claim.json"),
        ("explain", "claim", f"no{TITLE}such"),
        ("cdi", "list", "--cdi-dir", str(tmp_path)),
        ("devices", "--simulate", LINK),
        ("topology", "--sysfs-root", str(tmp_path / TITLE)),
        ("simulate", "create", f"x{TITLE}", str(tmp_path / "root")),
        ("run", "--config", f"no{TITLE}such"),
        (LINK,),
    ):
        result = subprocess.run(
            [AGENT, *arguments],
            capture_output=True,
            cwd=tmp_path,
            timeout=DEADLINE_S,
            env={**os.environ, "DRA_AGENT_STATE_DIR": str(tmp_path / "state")},
        )
        assert result.returncode in (0, 1, 2), (arguments, result)
        assert_harmless((result.stdout + result.stderr).decode())


def test_all_output_goes_through_the_terminal_module() -> None:
    terminal_module = ROOT / "python/dra_agent/cli/terminal.py"
    commands = [
        path for package in ("dra_agent", "dra_cluster") for path in (ROOT / "python" / package / "cli").glob("*.py")
    ]
    for path in sorted([*commands, ROOT / "python/dra_simulate/command.py"]):
        if path == terminal_module:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id == "Console":
                raise AssertionError(f"{path.name}:{node.lineno}: consoles are created in dra_agent.cli.terminal")
            if isinstance(node, ast.Attribute) and node.attr in ("__stdout__", "__stderr__", "raw", "buffer"):
                raise AssertionError(f"{path.name}:{node.lineno}: {node.attr} bypasses dra_agent.cli.terminal")
