"""One run of libFuzzer and its results."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# "#4096 pulse  cov: 120 ft: 300 corp: 40/1200b lim: 43 exec/s: 2048 rss: 60Mb"
_STATUS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+)", re.MULTILINE)
_INPUTS = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_ARTIFACT = re.compile(r"Test unit written to (\S+)")
HANG_TIMEOUT_S = 120
"""Wall clock time of one input. Targets measure CPU time; this ends a blocked target."""
MEMORY_LIMIT_MIB = 2048


@dataclass(frozen=True)
class Outcome:
    """The results of one run."""

    inputs: int
    coverage: int
    """Covered edges of the control flow."""
    new_files: int
    """Inputs with new coverage that were added to the working corpus."""
    seconds: float
    failure: Path | None
    """The failing input, if any."""
    log: Path
    failed: bool


def run(
    command: Sequence[str],
    corpora: Sequence[Path],
    folder: Path,
    *,
    seconds: int,
    inputs: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Fuzz for that many seconds, or until that many inputs were run; stop at the first failure.

    New inputs go to the first corpus. `folder` gets the log and the failing input.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for corpus in corpora:
        corpus.mkdir(parents=True, exist_ok=True)
    before = set(corpora[0].iterdir())
    log = folder / "log"
    options = [
        f"-artifact_prefix={folder}/",
        f"-timeout={HANG_TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_LIMIT_MIB}",
        "-print_final_stats=1",
        # Counting how rare each feature of an input is takes half of the time of an input with thousands of them.
        "-entropic=0",
        f"-max_total_time={seconds}",
        *([f"-runs={inputs}"] if inputs else []),
    ]
    started = time.monotonic()
    with log.open("wb") as output:
        completed = subprocess.run(
            [*command, *options, *map(str, corpora)],
            stdout=output,
            stderr=output,
            env=environment,
            check=False,
        )
    text = log.read_text(errors="replace")
    artifact = _ARTIFACT.search(text)
    statuses = _STATUS.findall(text)
    executed = _INPUTS.search(text)
    return Outcome(
        inputs=int(executed[1]) if executed else int(statuses[-1][0]) if statuses else 0,
        coverage=int(statuses[-1][1]) if statuses else 0,
        new_files=len(set(corpora[0].iterdir()) - before),
        seconds=time.monotonic() - started,
        failure=Path(artifact[1]) if artifact else None,
        log=log,
        failed=completed.returncode != 0,
    )


def minimise(
    command: Sequence[str], into: Path, corpora: Sequence[Path], log: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Fill `into` with few inputs that have the same coverage as the corpora.

    Raises:
        RuntimeError: libFuzzer selected no input. It exits with 0 even if it cannot run any.
    """
    into.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        subprocess.run(
            [*command, "-set_cover_merge=1", f"-timeout={HANG_TIMEOUT_S}", str(into), *map(str, corpora)],
            stdout=output,
            stderr=output,
            env=environment,
            check=True,
        )
    if not any(into.iterdir()):
        raise RuntimeError(f"libFuzzer selected no input: {log}")
