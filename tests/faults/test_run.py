"""A campaign continues after a failure, reports results at SIGTERM, and can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eventually import DEADLINE_S
from faults.results import Results, ResultsError, Shard, collect
from faults.run import Selection, Termination, exit_code, run

FAULTS = ("EIO", "ENOSPC")


class Cases:
    """A worker whose cases are calls of a function."""

    def __init__(self, case: Callable[[int, str], str]) -> None:
        self.case = case

    def log(self) -> str:
        return "the log"


def test_an_interrupted_run_reports_results_and_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[tuple[int, str]] = []

    def case(point: int, fault: str) -> str:
        done.append((point, fault))
        if (point, fault) == (1, "EIO"):
            raise AssertionError("a claim is gone")
        if (point, fault) == (2, "EIO"):
            os.kill(os.getpid(), signal.SIGTERM)
        return fault

    before = signal.getsignal(signal.SIGTERM)
    with Termination() as termination:
        tally = run(list(Selection().cases(4, FAULTS)), [Cases(case)], "call {}".format, termination)
    assert signal.getsignal(signal.SIGTERM) is before
    assert done == [(0, "EIO"), (0, "ENOSPC"), (1, "EIO"), (1, "ENOSPC"), (2, "EIO")]
    assert (tally.passed, tally.failed, tally.next_point, exit_code(tally)) == (4, 1, 2, 143)
    output = capsys.readouterr().out
    assert (
        "FAILED --point 1 --fault 'EIO' (call 1)" in output and "a claim is gone" in output and "    the log" in output
    )
    assert "     2 EIO" in output and "4 passed, 1 failed" in output and "ARGS='--from 2' continues it" in output
    # The point at which it was interrupted is run completely.
    rest = list(Selection(first=2).cases(4, FAULTS))
    assert rest == [(2, "EIO"), (2, "ENOSPC"), (3, "EIO"), (3, "ENOSPC")]


def test_a_complete_run_fails_if_a_case_failed() -> None:
    def case(point: int, fault: str) -> str:
        if point == 1:
            raise RuntimeError
        return fault

    with Termination() as termination:
        bad = run([(0, "EIO"), (1, "EIO")], [Cases(case)], str, termination)
        good = run([(0, "EIO")], [Cases(case)], str, termination)
    assert (exit_code(bad), exit_code(good), bad.next_point) == (1, 0, None)


def test_workers_run_different_cases_at_the_same_time() -> None:
    both = threading.Barrier(2)
    done: list[tuple[int, str]] = []

    def case(point: int, fault: str) -> str:
        both.wait(DEADLINE_S)
        done.append((point, fault))
        return fault

    cases = list(Selection().cases(3, FAULTS))
    with Termination() as termination:
        tally = run(cases, [Cases(case), Cases(case)], str, termination)
    assert sorted(done) == cases and (tally.passed, tally.failed) == (6, 0)


def test_a_sample_has_every_nth_case_and_depends_on_the_seed() -> None:
    everything = list(Selection().cases(10, FAULTS))
    samples = [list(Selection(every=4, seed=seed).cases(10, FAULTS)) for seed in range(20)]
    assert {len(sample) for sample in samples} == {5} and len({tuple(sample) for sample in samples}) == 4
    assert {case for sample in samples for case in sample} == set(everything)
    assert list(Selection(point=3, fault="EIO").cases(10, FAULTS)) == [(3, "EIO")]


def test_a_shard_that_was_killed_continues_with_the_case_that_it_had_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[int, str]] = []

    def case(point: int, fault: str) -> str:
        if (point, fault) == (3, "EIO") and not done.count((3, "EIO")):
            done.append((point, fault))
            raise KeyboardInterrupt
        done.append((point, fault))
        if point == 1:
            raise AssertionError("a claim is gone")
        return fault

    selections = [Selection(shard=Shard(number, 2), results=tmp_path) for number in (1, 2)]
    chosen = [list(selection.cases(5, FAULTS)) for selection in selections]
    assert not set(chosen[0]) & set(chosen[1]) and len(chosen[0] + chosen[1]) == 10
    with Termination() as termination:
        for selection, cases in zip(selections, chosen, strict=True):
            with contextlib.suppress(KeyboardInterrupt):
                run(cases, [Cases(case)], str, termination, selection.saved(len(cases)))
        report, is_complete = collect(tmp_path)
        assert not is_complete and "shard 1/2: 2 of 5 cases are missing" in report
        # The line of a case that a kill cut off does not count.
        with (tmp_path / "shard-1-of-2.jsonl").open("a") as file:
            file.write('{"point": 4, "fault": "EIO", "outco')
        run(chosen[0], [Cases(case)], str, termination, selections[0].saved(5))
    assert Counter(done) == Counter([*chosen[0], *chosen[1], (3, "EIO")])
    report, is_complete = collect(tmp_path)
    assert "10 of 10 cases: 8 passed, 2 failed" in report and "FAILED --point 1 --fault 'EIO'" in report
    assert not is_complete


def test_shards_that_were_not_run_are_missing(tmp_path: Path) -> None:
    Results(tmp_path, Shard(2, 3), "a", cases=0)
    report, is_complete = collect(tmp_path)
    assert not is_complete and "shard 1/3: not run\nshard 3/3: not run" in report


def test_results_of_another_revision_are_refused(tmp_path: Path) -> None:
    Results(tmp_path, Shard(1, 2), "a", cases=3)
    with pytest.raises(ResultsError, match=r"shard-1-of-2.jsonl has results of .*'a'.*: remove it"):
        Results(tmp_path, Shard(1, 2), "b", cases=3)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "x/2", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Shard.parse(text)
