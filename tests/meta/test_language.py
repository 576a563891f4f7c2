"""What users read is plain technical English: the words that this project once used for standard terms stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_REWRITTEN = {
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/adr/0007-a-taint-for-each-cause.md",
    "docs/adr/0030-reclaim-by-device-taint.md",
    "docs/adr/0031-sources-tell-all-that-they-see.md",
    "docs/adr/0032-cordon-for-named-claims.md",
    "docs/adr/0033-long-graces-before-the-taint.md",
    "docs/adr/0041-configuration-has-kinds-of-its-own-group.md",
    "docs/adr/0042-a-share-starts-limited-or-not-at-all.md",
    "docs/adr/0043-handed-over-devices-keep-their-description.md",
    "docs/adr/0044-nvml-in-a-process-of-its-own.md",
    "docs/adr/0045-published-slices-are-kept-as-json.md",
    "docs/adr/0046-the-agent-moves-interfaces.md",
    "docs/adr/0047-turns-are-short-and-devices-have-locks.md",
    "docs/adr/0048-processes-are-read-from-proc.md",
    "docs/cdi.md",
    "docs/cel.md",
    "docs/claim-status.md",
    "docs/device-metadata.md",
    "docs/kubelet-plugin.md",
    "docs/ledger.md",
    "docs/mig.md",
    "docs/nic-configuration.md",
    "docs/numbers.md",
    "docs/partitions-amd-intel.md",
    "docs/passthrough.md",
    "docs/prepare.md",
    "docs/shares.md",
    "docs/testing.md",
    "docs/time-slicing.md",
}
"""Pages in which older words are left."""
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {ROOT / page for page in NOT_REWRITTEN})

INSTEAD = {
    r"gives? out|giving out|given out|gave out": "allocate, advertise, manage",
    r"mends?|mended|mending|puts? (?:it |them |this |that )?right": "repair, fix",
    r"tells?|told|telling": "report, log, return, distinguish",
    r"says?|said|saying": "report, log, return, state",
    r"anew|again and again": "again, repeatedly, on every retry",
    r"a look|looks? at|looked at|looking at": "check, poll, scan",
    r"rights": "permissions",
    r"processors?": "CPU",
    r"nobody|whoever|somebody|anybody|someone else": "the component by its name, or a passive",
    r"(?:is|are|was|were|be) no (?!longer|more)[a-z-]+": "is not a",
    r"takes? back|taken back|took back|taking back": "withdraw, cancel",
    r"hosts? (?:is|are|was) (?:about to be |being )?taken": "spot interruption, node reclaim",
    r"how a device does|how devices do": "device health",
    r"be watched|watching the agent": "monitored, monitoring",
    r"stand-ins?|not there": "fake, simulated; missing, absent",
    r"for good": "permanently",
    r"beside": "alongside, next to, compared with",
    r"lets? (?:it|them|this|that|the [a-z]+) go|let go of|lets go of": "release, remove",
}
"""Patterns of whole words, and what to write."""

EXCEPTIONS: dict[str, frozenset[str]] = {}
"""Sentences that need such a word, by file: the text of the line's part that is meant."""


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


def _findings(path: Path) -> list[str]:
    name = str(path.relative_to(ROOT))
    allowed = EXCEPTIONS.get(name, frozenset())
    return [
        f"{name}:{number}: {match[0]!r}: write {instead}: {line.strip()[:100]}"
        for number, line in _prose(path.read_text())
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", line, re.IGNORECASE)
        if not any(match[0] in text and text in line for text in allowed)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_standard_terms(path: Path) -> None:
    findings = _findings(path)
    assert not findings, "\n".join(findings)
