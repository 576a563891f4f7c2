"""Messages that pages quote are messages of the agent: a reader searches for the text that is on the screen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for part in ("explanation", "how-to", "reference") for path in (ROOT / "docs" / part).rglob("*.md"))
COMMANDS = {
    "cargo",
    "cosign",
    "ctr",
    "dra-agent",
    "grep",
    "helm",
    "journalctl",
    "kubectl",
    "make",
    "modprobe",
    "podman",
}
COMMANDS |= {"python", "systemctl"}
OTHERS = {
    "cannot reserve space for releases in": "the ledger, which is Rust",
    "certificate has expired": "OpenSSL",
    "insufficient unused quota for gpu-memory in flavor": "Kueue",
    "images import dra-agent-image": "an option of ctr",
    "is in the process of being allocated": "a scheduler",
    "no instance type can satisfy the allocation": "Karpenter",
    "no instance type satisfies both scheduling and dynamic resource requirements": "Karpenter",
    "no matches for kind": "kubectl",
    "space left on device": "the kernel",
    "still preparing it": "a value in the middle: preparing, or unpreparing",
}
"""Parts that are not fixed text of the agent, and why."""


def strings(source: str) -> Iterator[str]:
    """Yield the strings of a module, with a space for each value of an f-string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else " " for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def quoted_parts(page: str) -> Iterator[str]:
    """Yield each run of three or more words of quoted messages, without the values between them."""
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    for quote in re.findall(r"`([^`]+)`", prose):
        words = quote.split()
        if len(words) >= 5 and words[0] not in COMMANDS and re.fullmatch(r"[a-z']+", words[0]):
            for part in re.split(r"[^a-z' -]+", re.sub(r"\S*[^a-z',;:. -]\S*", "|", " ".join(words))):
                if len(part.split()) >= 3:
                    yield part.strip()


def test_quoted_messages_exist() -> None:
    sources = [
        *(text for path in ROOT.glob("python/**/*.py") for text in strings(path.read_text())),
        *(path.read_text() for path in ROOT.glob("rust/**/src/**/*.rs")),
        *(path.read_text() for path in ROOT.glob("deploy/helm/**/*.yaml")),
    ]
    messages = "\n".join(sources).lower()
    parts = [(path, part) for path in PAGES for part in quoted_parts(path.read_text())]
    assert len(parts) > 40
    assert [
        f"{path.relative_to(ROOT)}: {part}" for path, part in parts if part not in messages and part not in OTHERS
    ] == []
