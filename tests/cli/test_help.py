"""Help of every command: its examples parse, and wrong spellings get the nearest right one."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr

import pytest

from dra_agent.cli.main import main
from dra_agent.cli.parser import Parser, build_parser, leaves

TREE = build_parser()
COMMANDS = {" ".join(words): parser for words, parser in leaves(TREE)}


def examples(parser: Parser) -> list[str]:
    """The commands of an epilog, without comments and redirections."""
    lines = re.findall(r"^  dra-agent (.*)$", parser.epilog or "", re.MULTILINE)
    return [re.split(r"\s[>|]\s", " ".join(shlex.split(line, comments=True)))[0] for line in lines]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_examples_that_parse(command: str) -> None:
    found = examples(COMMANDS[command])
    assert found, "its help has no example"
    for line in found:
        with redirect_stderr(io.StringIO()) as errors:
            try:
                TREE.parse_args(shlex.split(line))
            except SystemExit:
                pytest.fail(f"{line}: {errors.getvalue()}")
    assert any(line.startswith(command) for line in found), found


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_flag_of_the_help_is_known_to_pages_and_messages(command: str) -> None:
    parser = COMMANDS[command]
    shown = set(re.findall(r"^  (?:-\w(?: [^\s,]+)?, )?(--[\w-]+)", parser.format_help(), re.MULTILINE))
    assert shown and shown <= parser.flags.keys()


@pytest.mark.parametrize(
    ("line", "command", "message"),
    [
        ("devces", "dra-agent", "did you mean devices?"),
        ("devices --famly gpu", "dra-agent devices", "unknown flag: --famly; did you mean --family?"),
        ("devices --famly=gpu", "dra-agent devices", "unknown flag: --famly; did you mean --family?"),
        ("devices --family gpux", "dra-agent devices", "did you mean gpu?"),
        ("claim lst", "dra-agent claim", "did you mean list?"),
        ("claim wait x --time-out 3", "dra-agent claim wait", "unknown flag: --time-out; did you mean --timeout?"),
        ("reclaim status --wacth", "dra-agent reclaim status", "did you mean --watch?"),
        ("cdi vaildate", "dra-agent cdi", "did you mean validate?"),
        ("topology host", "dra-agent topology", "unexpected argument: host"),
        ("--versoin devices", "dra-agent", "unknown flag: --versoin; did you mean --version?"),
        ("topology -o jsn", "dra-agent topology", "did you mean json?"),
        ("devices --zzzzzz", "dra-agent devices", "unknown flag: --zzzzzz\n"),
        ("get claims", "dra-agent", "did you mean `claim get`?"),
        ("version", "dra-agent", "did you mean --version?"),
        ("claim help", "dra-agent claim", "did you mean --help?"),
        ("validate x.yaml", "dra-agent", "did you mean `config validate` or `cdi validate`?"),
    ],
)
def test_wrong_spellings_get_the_nearest_right_one(
    line: str, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"usage: {command} " in printed.err and message in printed.err


def groups(parser: Parser, words: str = "") -> dict[str, Parser]:
    """Return every command that has further commands, by its words."""
    found = {words: parser} if parser.commands else {}
    for name, child in parser.commands.items():
        found |= groups(child, f"{words} {name}".strip())
    return found


GROUPS = groups(TREE)


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_a_group_of_commands_has_examples_of_its_commands(group: str) -> None:
    found = examples(GROUPS[group])
    assert 1 < len(found) <= 7
    for line in found:
        assert line.startswith(group)
        TREE.parse_args(shlex.split(line))


@pytest.mark.parametrize("group", sorted(GROUPS.keys() - {"claims"}))
def test_a_missing_command_prints_the_help_of_its_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "examples:" in printed.err
    last = printed.err.splitlines()[-1]
    assert last.startswith(f"dra-agent {group}".strip() + ": error: the following arguments are required: ")


def test_the_tree_has_every_command_that_the_help_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^    (\S+) ", capsys.readouterr().out, re.MULTILINE)
    assert {words.split()[0] for words in COMMANDS} == set(listed)
