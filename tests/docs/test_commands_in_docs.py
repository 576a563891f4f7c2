"""Every command of the agent in a page is one that its parser accepts, in code blocks and within sentences."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.cli.parser import Parser, build_parser
from dra_agent.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"cli.md"}
"""Has usages, which are not commands."""
BLOCK = re.compile(r"^ *```(sh|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
START = re.compile(r"(?:^|[\s(/])dra-agent (?=[a-z-])")
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"}


def lines(page: Path) -> Iterator[str]:
    text = page.read_text()
    for kind, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "sh" or line.startswith("$ "):
                yield line
    yield from re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def commands(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of the agent in a line of a shell."""
    for match in START.finditer(line):
        # Not in: `kubectl -n dra-agent get`, `systemctl status dra-agent`, a path.
        if re.search(r"(kubectl|helm|systemctl|journalctl)\b[^|;&(]*$", line[: match.start()]) and not re.search(
            r"-- *$", line[: match.start() + 1]
        ):
            continue
        lexer = shlex.shlex(line[match.end() :], posix=True, punctuation_chars="()`|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        try:
            for word in lexer:
                if word in ENDS or word.startswith((")", "`", "|", "&", ";", ">", "<")):
                    break
                words.append(word)
        except ValueError:
            pass  # The rest of a word of another shell.
        yield words


def is_path(parser: Parser, words: list[str]) -> bool:
    """Return whether the words name a command, without its arguments."""
    for word in words:
        if word not in parser.commands:
            return False
        parser = parser.commands[word]
    return True


whole_parser = functools.cache(build_parser)


def problem(words: list[str]) -> str | None:
    parser = whole_parser()
    if is_path(parser, words) or any("..." in word or "…" in word for word in words):
        return None
    try:
        parser.parse_args(words)
    except UsageError as error:
        return str(error)
    except SystemExit as end:
        return None if end.code in (0, None) else f"exit code {end.code}"
    return None


FOUND = {
    page: found
    for page in PAGES
    if page.name not in GENERATED and (found := [words for line in lines(page) for words in commands(line)])
}


def test_the_pages_have_commands() -> None:
    assert sum(map(len, FOUND.values())) > 150


@pytest.mark.parametrize("page", FOUND, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = [f"dra-agent {shlex.join(words)}: {found}" for words in FOUND[page] if (found := problem(words))]
    assert not wrong, "\n".join(wrong)
