"""Pages, messages, comments and docstrings are plain technical English, without older words for standard terms."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})

COMMENTED = sorted(
    {
        ROOT / "Makefile",
        ROOT / "cdi/schema.json",
        ROOT / "deploy/Containerfile",
        *ROOT.glob("systemd/*"),
        *(path for path in ROOT.glob("deploy/helm/**/*") if path.suffix in {".yaml", ".json", ".tpl", ".txt"}),
        *ROOT.glob("deploy/kustomize/**/*.yaml"),
        *(path for path in ROOT.glob("examples/**/*") if path.suffix in {".yaml", ".toml"}),
    }
)
"""Other files that users read: their comments, the help of make, descriptions of schemas, and the chart's notes."""

CODE = sorted(
    {
        *(path for path in ROOT.glob("python/**/*.py") if not path.stem.endswith("_pb2")),
        *(path for folder in ("deploy", "demo", "fuzz") for path in ROOT.glob(f"{folder}/**/*.py")),
        *ROOT.glob("rust/**/*.rs"),
        *(path for path in ROOT.glob("fuzz/**/*.rs") if "target" not in path.parts),
    }
)
"""The product, its packaging and fuzz targets: their comments, docstrings and messages."""

SCRIPTS = sorted(
    {
        *(ROOT / "deploy/deb" / name for name in ("postinst", "postrm", "prerm")),
        *ROOT.glob("examples/**/*.sh"),
        *ROOT.glob("tests/**/*.sh"),
    }
)
"""Maintainer scripts of the package and other shell scripts: their comments and messages."""

TESTS = sorted({*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")} - {Path(__file__)})
"""Tests and benchmarks: their comments, docstrings and messages. This file contains the words themselves."""

INSTEAD = {
    r"gives? (?:\w+ )?out|giving out|given out|gave out": "allocate, advertise, manage",
    r"mends?|mended|mending|puts? (?:it |them |this |that )?right": "repair, fix",
    r"tells?|told|telling": "report, log, return, distinguish",
    r"says?|said|saying": "report, log, return, state",
    r"anew|again and again": "again, repeatedly, on every retry",
    r"a look|looks? at|looked at|looking at": "check, poll, scan",
    r"rights|(?:a|the|no) right(?= (?:to|that)\b)": "permission",
    r"processors?": "CPU",
    r"nobody|somebody|anybody|someone else": "the component by its name, or a passive",
    r"(?<!there )(?<!There )(?:is|are|was|were|be) no (?!longer|more)[a-z-]+": "is not a",
    r"takes? back|taken back|took back|taking back": "withdraw, cancel",
    r"hosts? (?:is|are|was) (?:about to be |being )?taken": "spot interruption, node reclaim",
    r"how a device does|how devices do": "device health",
    r"be watched|watching the agent": "monitored, monitoring",
    r"stand-ins?|not there": "fake, simulated; missing, absent",
    r"for good": "permanently",
    r"beside": "alongside, next to, compared with",
    r"lets? (?:it|them|this|that|the [a-z]+) go|let go of|lets go of": "release, remove",
    r"go(?:es)? on|going on": "continue",
    r"all the same": "still, anyway",
    r"once more": "again",
    r"lies? (?:in|below|on)|lay (?:in|below|on)": "is in, is below",
    r"gives? (?:it |them )?back|given back": "release, restore",
    r"whom|everybody|no one|strangers?": "the component by its name, or a passive",
    r"of (?:its|their) own(?=\W*$|[.,:;)]| (?:in|on|for|where|so|and|which|with|without)\b)": "its own, another",
    r"whatever|whichever|whoever": "every, any, independent of",
    r"puts? together|for want of|none of its own|looks? after": "compose, build; for lack of; not have; supervise",
}
"""Patterns of whole words in lowercase, and what to write."""

EXCEPTIONS: dict[str, frozenset[str]] = {
    "python/dra_agent/health/issues.py": frozenset({"GPU System Processor"}),
    "python/dra_agent/health/settings.py": frozenset({"tell: a taint with the effect None"}),
    "tests/agent/test_config.py": frozenset({"one of NoExecute, NoSchedule, tell, none"}),
    "tests/cluster/kube/node.py": frozenset({"io.containerd.tracing.processor.v1.otlp"}),
}
"""Sentences that need such a word, by file: the text of the line's part that is meant."""

_WORDS = {re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE): write for pattern, write in INSTEAD.items()}
_ANY_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(pattern.partition('(?=')[0] for pattern in INSTEAD)})(?![\w-])")
"""Matches the casefolded text of each file that has one of the words in prose, and of few others.

To read the prose of a file takes ten times longer. The text after a word (`(?=`) may be different in prose.
"""
_NAME_WORDS = {re.compile(rf"\b(?:{pattern})\b"): write for pattern, write in INSTEAD.items()}
_ANY_NAME_WORD = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
_FUNCTION = re.compile(r"^[^\S\n]*(?:(?:async )?def|(?:pub(?:\([a-z]+\))? )?(?:unsafe )?fn) (\w+)", re.MULTILINE)


def _prose(text: str) -> list[tuple[int, str]]:
    """Return the lines outside of code blocks, without inline code and the targets of links."""
    lines: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, re.sub(r"`[^`]*`|\]\([^)]*\)", "``", line)))
    return lines


def _comments(path: Path) -> list[tuple[int, str]]:
    """Return the lines of prose in a file that is not a page, without inline code."""
    patterns = {".json": r'"description": "((?:[^"\\]|\\.)*)"', ".txt": r"^(\S.*)"}
    comment = re.compile(patterns.get(path.suffix, r"(?:^|\s)#+\s(.*)|\{\{/\*(.*?)\*/"))
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := comment.search(re.sub(r"\{\{[^/].*?\}\}", "", line)):
            lines.append((number, re.sub(r"`[^`]*`", "``", next(filter(None, found.groups()), ""))))
    return lines


def _python(text: str) -> Iterable[tuple[int, str]]:
    """Return comments and the lines of strings of several words, without inline code and values of f-strings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            prose = re.sub(r"`[^`]*`|\{[^{}]*\}", "``", token.string)
            yield from enumerate(prose.splitlines(), token.start[0])


_RUST_TOKEN = re.compile(
    r"""//[^\n]*  # a comment, documentation included
      | '(?:[^'\\\n]|\\[^\n]{1,8})'  # a character, which may be a quote
      | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
      | "(?P<text>(?:[^"\\]|\\.)*)"
    """,
    re.VERBOSE | re.DOTALL,
)


def _rust(text: str) -> Iterable[tuple[int, str]]:
    """Return comments and the lines of strings of several words, without inline code and format arguments."""
    for token in _RUST_TOKEN.finditer(text):
        string = token["raw"] if token["raw"] is not None else token["text"]
        if token[0].startswith("// ") or token[0].startswith(("/// ", "//! ")) or (string and " " in string):
            prose = re.sub(r"`[^`]*`|\{[^{}]*\}", "``", token[0])
            yield from enumerate(prose.splitlines(), text.count("\n", 0, token.start()) + 1)


def _shell(text: str) -> Iterable[tuple[int, str]]:
    """Return comments and strings of several words, without inline code and variables."""
    for token in re.finditer(r"(?<!\S)#[ \t][^\n]*|\"(?:[^\"\\]|\\.)*\"|'[^']*'", text, re.DOTALL):
        if " " in token[0]:
            prose = re.sub(r"`[^`]*`|\$\{[^{}]*\}|\$\w+", "``", token[0])
            yield from enumerate(prose.splitlines(), text.count("\n", 0, token.start()) + 1)


def _functions(path: Path) -> Iterable[tuple[int, str]]:
    """Return the lines and names of functions."""
    text = path.read_text()
    for function in _FUNCTION.finditer(text):
        yield text.count("\n", 0, function.start()) + 1, function[1]


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    readers = {".md": _prose, ".py": _python, ".rs": _rust, ".sh": _shell}
    if path in SCRIPTS:
        return _shell(path.read_text())
    return readers[path.suffix](path.read_text()) if path.suffix in readers else _comments(path)


def _findings(path: Path) -> list[str]:
    if not _ANY_WORD.search(path.read_text().casefold()):
        return []
    name = str(path.relative_to(ROOT))
    allowed = EXCEPTIONS.get(name, frozenset())
    return [
        f"{name}:{number}: {match[0]!r}: write {instead}: {line.strip()[:100]}"
        for number, line in _lines(path)
        for word, instead in _WORDS.items()
        for match in word.finditer(line)
        if not any(match[0] in text and text in line for text in allowed)
    ]


@pytest.mark.parametrize("path", PAGES + COMMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_standard_terms(path: Path) -> None:
    findings = _findings(path)
    assert not findings, "\n".join(findings)


def test_code_is_commented_in_standard_terms() -> None:
    findings = [finding for path in CODE + SCRIPTS + TESTS for finding in _findings(path)]
    assert not findings, "\n".join(findings)


def test_names_of_functions_use_standard_terms() -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {match[0]!r}: write {instead}"
        for path in CODE + TESTS
        for line, name in _functions(path)
        if _ANY_NAME_WORD.search(words := name.replace("_", " "))
        for word, instead in _NAME_WORDS.items()
        for match in word.finditer(words)
    ]
    assert not findings, "\n".join(findings)


def test_no_file_with_a_word_is_skipped() -> None:
    assert not [pattern for pattern in INSTEAD if re.search(r"(?<!\\)[A-Z]", pattern.replace("(?<!There )", ""))]
    assert _ANY_WORD.search("a name of its own `x`") and _ANY_WORD.search("# It Tells `x`".casefold())
    assert not _ANY_WORD.search("intelligence")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("module.py", 'tell = tells("tell")  # tell it\nprint(f"{tell} a")\n'),
        ("lib.rs", "let tell = 'a';  // tell it\n"),
        ("main.rs", 'let (tell, quote) = ("tell it", \'"\'); print("tell");\n'),
        ("raw.rs", 'let tell = r#"tell it"#; f::<\'a>(tell);\n'),
        ("script.sh", "tell=1  # tell it\ntell\n"),
        ("message.sh", "tell 'tell it'\n"),
        ("Makefile", "all: ## tell it\n\techo tell it\n"),
        ("values.yaml", "# `tell` it\na: tell\nb: 1  # tell it\n"),
        ("unit.service", "# tell it\nTell=it\n"),
        ("names.tpl", "{{/* tell it */}}\n{{ tell }}\n"),
        ("NOTES.txt", "  kubectl tell\ntell it{{ tell }}\n"),
        ("schema.json", '{\n"title": "tell",\n"description": "tell it"\n}\n'),
    ],
)
def test_comments_are_read_and_code_is_not(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [line.strip("/#r\"' ") for _, line in _lines(path) if "tell" in line] == ["tell it"]
