"""Two results of benchmarks are compared with their noise: made-up results with a known difference."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from compare import Change, compare, main
from results import Machine, Measure, Results, ResultsError, Target, load, measure, save
from results_table import table

MACHINE = Machine("EPYC", 2, "6.18", 0.4)


def noisy(seed: int, *, median: float = 1.0, noise: float = 0.1, count: int = 200) -> list[float]:
    chance = random.Random(seed)
    return [median * chance.lognormvariate(0, noise) for _ in range(count)]


def results(*measures: Measure, machine: Machine = MACHINE) -> Results:
    return Results(1, "prepare", "abc", "2026-11-24T12:00:00+00:00", machine, measures)


def changes(old: Measure, new: Measure, **options: Any) -> list[Change]:
    return compare(results(old), results(new), **options)


def verdict(old: Measure, new: Measure, **options: Any) -> str:
    (change,) = changes(old, new, **options)
    return change.verdict


@pytest.mark.parametrize("at", [0.0, 0.5, 0.9])
def test_a_slowdown_is_found(at: float) -> None:
    old, new = (measure("prepare", "ms", noisy(seed, median=m), at=at) for seed, m in ((1, 1.0), (2, 1.2)))
    (change,) = changes(old, new)
    assert change.verdict == "slower"
    assert change.is_failure
    assert change.ratio is not None
    assert change.low < change.ratio < change.high or at == 0.0
    assert verdict(new, old) == "faster"


def test_noise_is_not_a_slowdown() -> None:
    found = [
        verdict(measure("prepare", "ms", noisy(seed)), measure("prepare", "ms", noisy(seed + 1000)))
        for seed in range(30)
    ]
    assert set(found) == {"within noise"}


def test_a_wide_spread_hides_a_small_difference() -> None:
    old, new = (
        measure("p", "ms", noisy(1, noise=1, count=20)),
        measure("p", "ms", noisy(2, median=1.1, noise=1, count=20)),
    )
    assert verdict(old, new) == "within noise"


def test_a_small_difference_is_below_the_threshold() -> None:
    old, new = measure("p", "ms", noisy(1, noise=0.001)), measure("p", "ms", noisy(2, median=1.02, noise=0.001))
    assert verdict(old, new) == "within noise"
    assert verdict(old, new, threshold=0.01) == "slower"


def test_a_slower_machine_slows_the_reference_too() -> None:
    def run(seed: int, median: float, reference: float) -> Measure:
        bare = noisy(seed + 50, median=reference)
        return measure("prepare", "ms", noisy(seed, median=median), compared_with="bare", reference=bare)

    assert verdict(run(1, 1, 1), run(2, 2, 2)) == "within noise"
    assert verdict(run(1, 1, 1), run(2, 1, 0.5)) == "slower"


@pytest.mark.parametrize(("new", "expected"), [(0, "within noise"), (2, "slower")])
def test_a_count_of_zero_is_compared_without_its_reference(new: float, expected: str) -> None:
    old, changed = (measure("writes", "1/h", [count], compared_with="Go", reference=[0]) for count in (0, new))
    assert verdict(old, changed) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(-0.1, 50.0, "slower"), (0.2, -3.0, "faster"), (-0.1, 0.3, "within noise"), (0.0, 0.6, "slower")],
)
def test_a_growth_that_may_be_negative_is_compared_by_its_difference(old: float, new: float, expected: str) -> None:
    # The reference is as small as the noise, so a ratio to it has no meaning.
    before, after = (
        measure("growth", "MiB", [value], compared_with="Go", reference=[go], noise=0.5)
        for value, go in ((old, 0.55), (new, 0.16))
    )
    assert verdict(before, after) == expected


def test_more_may_be_better() -> None:
    old, new = (measure("rate", "1/s", noisy(seed, median=m), better="higher") for seed, m in ((1, 100), (2, 70)))
    assert verdict(old, new) == "slower"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (60, 61, "within noise"),
        (60, 63.5, "within noise"),
        (60, 70, "slower"),
        (60, 50, "faster"),
        (0, 0, "within noise"),
        (0, 3, "slower"),
        (-1, 3, "not comparable"),
    ],
)
def test_single_values_have_an_assumed_noise(old: float, new: float, expected: str) -> None:
    assert verdict(measure("memory", "MiB", [old]), measure("memory", "MiB", [new])) == expected


def test_missing_and_new_measures_are_named() -> None:
    found = compare(results(measure("a", "ms", [1])), results(measure("b", "ms", [1])))
    assert [(one.name, one.verdict, one.is_failure) for one in found] == [("a", "missing", True), ("b", "new", False)]


def test_another_unit_is_not_comparable() -> None:
    (change,) = changes(measure("a", "ms", [1]), measure("a", "s", [1]))
    assert (change.verdict, change.reason) == ("not comparable", "another unit: ms, s")


def test_other_machines_are_refused_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, machine in (("old", MACHINE), ("new", Machine("Xeon", 2, "6.18", 0.4))):
        save("prepare", [measure("a", "ms", noisy(1))], machine, directory=tmp_path / name)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert main([old, new]) == 2
    printed = capsys.readouterr().out
    assert "another machine" in printed
    assert "--force" in printed
    assert main([old, new, "--force"]) == 0


def test_the_load_may_differ() -> None:
    busy = results(measure("a", "ms", noisy(1)), machine=Machine("EPYC", 2, "6.18", 30.0))
    (change,) = compare(results(measure("a", "ms", noisy(1))), busy)
    assert change.verdict == "within noise"


@pytest.mark.parametrize(("median", "code"), [(1.0, 0), (1.5, 1)])
def test_the_exit_code_states_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], median: float, code: int
) -> None:
    old, _ = save("prepare", [measure("step", "ms", noisy(1))], MACHINE, directory=tmp_path / "old")
    new, _ = save("prepare", [measure("step", "ms", noisy(2, median=median))], MACHINE, directory=tmp_path / "new")
    assert main([str(old), str(new)]) == code
    assert ("slower" if code else "within noise") in capsys.readouterr().out


def test_a_benchmark_without_new_results_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("prepare", [measure("step", "ms", [1])], MACHINE, directory=tmp_path / "old")
    (tmp_path / "new").mkdir()
    assert main([str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "missing" in capsys.readouterr().out


def test_results_are_read_back(tmp_path: Path) -> None:
    target = Target("ratio", "at most", 0.5)
    one = measure("a", "ms", noisy(1), at=0.99, compared_with="bare", reference=noisy(2), target=target)
    path, written = save("prepare", [one], MACHINE, directory=tmp_path)
    assert load(path) == written
    assert json.loads(path.read_bytes())["measures"][0]["holds"] is False


def test_many_samples_are_replaced_by_their_quantiles() -> None:
    one = measure("a", "ms", range(100_000))
    assert len(one.samples) == 1000
    assert one.value == pytest.approx(50_000, rel=0.001)


def body(**fields: Any) -> dict[str, Any]:
    one = {"name": "a", "unit": "ms", "samples": [1.0]}
    machine = {"cpu": "EPYC", "cores": 2, "kernel": "6.18", "load": 0.1}
    whole = {"schema": 1, "benchmark": "p", "revision": "a", "date": "d", "machine": machine, "measures": [one]}
    return {**whole, **fields}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(body())[:-20], "not complete JSON"),
        ("", "not complete JSON"),
        ("\xff", "not complete JSON"),
        ("[" * 100_000, "results: Expected `object`"),
        (json.dumps(body(schema=2)), "schema: 2, this version reads 1"),
        (json.dumps(body(machine=None)), "machine: Expected `object`"),
        (json.dumps(body(extra=1)), "extra"),
        (json.dumps(body(measures=[{"name": "a", "unit": 3, "samples": [1]}])), "measures[0].unit: Expected `str`"),
        (json.dumps(body(measures=[{"name": "a", "unit": "s", "samples": []}])), "measures[0]: samples: none"),
        (json.dumps(body(measures=[{"name": "a", "unit": "s", "samples": [1e999]}])), "not complete JSON"),
        (json.dumps(body(measures=body()["measures"] * 2)), "measures: 'a' is there twice"),
        (" " * (17 << 20), "larger than 16 MiB"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="latin-1")
    assert main([str(path), str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: ")
    assert message in line


def test_a_missing_file_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_an_invalid_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="reference"):
        measure("a", "ms", [1], compared_with="bare")
    with pytest.raises(ResultsError):
        load(Path("/dev/null/x"))


def test_the_table_states_whether_a_target_holds() -> None:
    target = Target("ratio", "at most", 0.2)
    head, met, missed, plain = table(
        [
            measure("fast", "ms", [1], compared_with="libpci", reference=[9], target=target),
            measure("slow", "ms", [3], compared_with="libpci", reference=[9], target=target),
            measure("memory", "MiB", [41.04]),
        ]
    )
    assert head.split() == ["measure", "measured", "compared", "with", "ratio", "target", "holds"]
    assert met.split() == ["fast", "1", "ms", "9", "libpci", "0.11", "ratio", "at", "most", "0.2", "yes"]
    assert missed.endswith("NO")
    assert plain.split() == ["memory", "41", "MiB"]
