"""The results of one benchmark as a JSON file below target/bench: what was measured, on which machine, at which commit.

All benchmarks write this form, and `compare.py` reads it. Numbers are in the unit of the measure.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

SCHEMA = 1
"""The version of the form; another one is refused."""
MAX_BYTES = 16 << 20
MAX_SAMPLES = 1000
"""Samples of one side that are stored; more are replaced by as many of their quantiles."""
GROWTH_NOISE_MIB = 0.5
"""The difference between runs of the same build, of the growth of resident memory (docs/explanation/numbers.md)."""
DIRECTORY = Path(__file__).resolve().parent.parent / "target" / "bench"


class ResultsError(Exception):
    """A file cannot be used; the message names the file and the field."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a benchmark ran."""

    cpu: str
    cores: int
    kernel: str
    load: float
    """The load average of one minute at the start."""

    def is_same(self, other: Machine) -> bool:
        """Return whether times of both can be compared; the load may differ."""
        return (self.cpu, self.cores, self.kernel) == (other.cpu, other.cores, other.kernel)


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limit of a measure."""

    of: Literal["value", "ratio"]
    bound: Literal["at most", "at least"]
    limit: float

    def __str__(self) -> str:
        return f"{'ratio ' if self.of == 'ratio' else ''}{self.bound} {self.limit:g}"


class Measure(msgspec.Struct, frozen=True):
    """One measured quantity: a quantile of its samples, and the same of what it is compared with in the same run.

    The file also has `value`, `ratio` and `holds`, for other programs; `load` computes them again.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    better: Literal["lower", "higher"] = "lower"
    quantile: float = 0.5
    """0 is the minimum, 0.5 the median, 0.99 the p99."""
    compared_with: str = ""
    reference: tuple[float, ...] = ()
    """The samples of `compared_with`, from the same run."""
    target: Target | None = None
    noise: float = 0.0
    """The difference of two runs that is noise, in the unit: for a measure that can be 0 or less, such as growth.
    0: the relative difference counts."""

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("samples: none")
        if not 0 <= self.quantile < 1:
            raise ValueError(f"quantile: {self.quantile}, not from 0 to 1")
        if bool(self.reference) != bool(self.compared_with):
            raise ValueError("reference: compared_with without samples, or samples without compared_with")
        if not all(map(math.isfinite, (*self.samples, *self.reference))):
            raise ValueError("samples: not finite")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise: {self.noise}, not a difference")

    @property
    def value(self) -> float:
        """The quantile of the samples."""
        return quantile(self.samples, self.quantile)

    @property
    def reference_value(self) -> float | None:
        """The same quantile of what it is compared with."""
        return quantile(self.reference, self.quantile) if self.reference else None

    @property
    def ratio(self) -> float | None:
        """The value divided by that of `compared_with`."""
        reference = self.reference_value
        return self.value / reference if reference else None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        measured = self.ratio if self.target and self.target.of == "ratio" else self.value
        if self.target is None or measured is None:
            return None
        return measured <= self.target.limit if self.target.bound == "at most" else measured >= self.target.limit


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All measures of one run of a benchmark."""

    schema: int
    benchmark: str
    revision: str
    """The commit, with "-dirty" if files differ from it."""
    date: str
    machine: Machine
    measures: tuple[Measure, ...]

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.measures]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"measures: {repeated[0]!r} is there twice")


class _Version(msgspec.Struct):
    schema: int


def measure(
    name: str,
    unit: str,
    samples: Iterable[float],
    *,
    better: Literal["lower", "higher"] = "lower",
    at: float = 0.5,
    compared_with: str = "",
    reference: Iterable[float] = (),
    target: Target | None = None,
    noise: float = 0.0,
) -> Measure:
    """Return a measure with at most MAX_SAMPLES samples of each side; `at` is its quantile."""
    kept, compared = _thinned(list(samples)), _thinned(list(reference))
    return Measure(name, unit, kept, better, at, compared_with, compared, target, noise)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value at this share of the sorted values."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that this share of values does not exceed; 0 without values."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else 0.0


def this_machine() -> Machine:
    """Describe this machine."""
    return Machine(_cpu_model(), os.cpu_count() or 1, platform.release(), round(os.getloadavg()[0], 2))


def save(
    benchmark: str, measures: Iterable[Measure], machine: Machine, *, directory: Path | None = None
) -> tuple[Path, Results]:
    """Write target/bench/BENCHMARK.json. `machine` is that of the start, which has the load before the measurement."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    results = Results(SCHEMA, benchmark, _revision(), date, machine, tuple(measures))
    folder = directory or DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    temporary = path.with_suffix(".new")
    fields = msgspec.to_builtins(results)
    for one, written in zip(results.measures, fields["measures"], strict=True):
        written |= {"value": one.value, "ratio": one.ratio, "holds": one.holds}
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n")
    temporary.rename(path)
    return path, results


def load(path: Path) -> Results:
    """Read the results of one run.

    Raises:
        ResultsError: The file cannot be read, is too large or incomplete, or has another version or an invalid field.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from None
    if len(text) > MAX_BYTES:
        raise ResultsError(f"{path}: larger than {MAX_BYTES >> 20} MiB; results of a benchmark are smaller")
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version != SCHEMA:
            raise ResultsError(
                f"{path}: schema: {version}, this version reads {SCHEMA}; run the benchmark again at that commit"
            )
        return msgspec.json.decode(text, type=Results)
    except msgspec.ValidationError as error:
        message, _, field = str(error).partition(" - at `$")
        raise ResultsError(f"{path}: {field.rstrip('`').lstrip('.') or 'results'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultsError(f"{path}: not complete JSON: {error}; run the benchmark again") from None


def _thinned(values: list[float]) -> tuple[float, ...]:
    if len(values) <= MAX_SAMPLES:
        return tuple(values)
    ordered = sorted(values)
    return tuple(ordered[(2 * place + 1) * len(ordered) // (2 * MAX_SAMPLES)] for place in range(MAX_SAMPLES))


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown CPU"


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=DIRECTORY.parents[1], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
