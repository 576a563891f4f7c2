"""The campaign reports failures of targets and how to reproduce them; it needs no compiler here."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fuzz import campaign, corpus, libfuzzer
from fuzz.targets import DRIVERS, ROOT, RUST, TARGETS

DRIVER = """
import sys
from pathlib import Path
options = dict(o[1:].split("=", 1) for o in sys.argv[1:] if o.startswith("-"))
folders = [Path(a) for a in sys.argv[1:] if not a.startswith("-")]
(folders[0] / "new").write_bytes(b"x")
print("#2\\tINITED cov: 7 ft: 9 corp: 1/1b exec/s: 0 rss: 30Mb", file=sys.stderr)
print("#512\\tpulse  cov: 12 ft: 20 corp: 3/9b lim: 4 exec/s: 256 rss: 30Mb", file=sys.stderr)
if FAILS:
    print("thread '<unnamed>' panicked at src/x.rs:1:2:\\n1 is not 2", file=sys.stderr)
    artifact = Path(options["artifact_prefix"]) / "crash-1"
    artifact.write_bytes(b"bad")
    print(f"artifact_prefix='x'; Test unit written to {artifact}", file=sys.stderr)
    sys.exit(77)
print("stat::number_of_executed_units: 600", file=sys.stderr)
"""


def drive(folder: Path, fails: bool) -> libfuzzer.Outcome:
    command = [sys.executable, "-c", DRIVER.replace("FAILS", str(fails))]
    return libfuzzer.run(command, [folder / "work", folder / "committed"], folder / "failures", seconds=1)


def test_results_of_a_run_are_counted(tmp_path: Path) -> None:
    outcome = drive(tmp_path, fails=False)
    assert (outcome.inputs, outcome.coverage, outcome.new_files) == (600, 12, 1)
    assert not outcome.failed and outcome.failure is None


def test_a_failure_names_its_input_and_the_reproducing_command(tmp_path: Path) -> None:
    outcome = drive(tmp_path, fails=True)
    assert outcome.failed and outcome.inputs == 512
    assert outcome.failure is not None and outcome.failure.read_bytes() == b"bad"
    text = campaign.describe(TARGETS["quantity"], outcome)
    assert "1 is not 2" in text
    assert f"make fuzz ARGS='--target quantity --input {outcome.failure}'" in text


def test_a_minimized_corpus_without_inputs_is_refused(tmp_path: Path) -> None:
    def minimise(selected: str) -> list[str]:
        driver = f"import sys; from pathlib import Path; {selected}"
        into = tmp_path / "into"
        libfuzzer.minimise([sys.executable, "-c", driver], into, [], tmp_path / "log")
        return [path.name for path in into.iterdir()]

    with pytest.raises(RuntimeError, match=f"libFuzzer selected no input: {tmp_path / 'log'}"):
        minimise("")
    assert minimise("(Path(sys.argv[3]) / 'one').touch()") == ["one"]


def test_every_target_has_a_driver_a_corpus_and_a_dictionary() -> None:
    assert {path.stem for path in (DRIVERS / "src" / "bin").iterdir()} == {target.name for target in RUST}
    assert {path.name for path in corpus.CORPUS.iterdir()} == {corpus.archive(name).name for name in TARGETS}
    for target in TARGETS.values():
        assert not target.dictionary or (DRIVERS / "dictionaries" / target.dictionary).is_file()


def test_the_committed_corpus_stays_small() -> None:
    inputs = [corpus.read(corpus.archive(name)) for name in TARGETS]
    total = sum(len(content) for one in inputs for content in one.values())
    assert total < 1 << 20, f"the corpus has {total} bytes: make fuzz ARGS=--minimise"


def test_drivers_use_the_crate_versions_of_the_product() -> None:
    def packages(lock: Path) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for package in tomllib.loads(lock.read_text())["package"]:
            found.setdefault(package["name"], set()).add(package["version"])
        return found

    product, drivers = packages(ROOT / "Cargo.lock"), packages(DRIVERS / "Cargo.lock")
    other = {name: versions for name, versions in drivers.items() if name in product and versions - product[name]}
    assert not other, f"cp Cargo.lock fuzz/ && cd fuzz && cargo update --workspace: {other}"


@pytest.mark.parametrize("arguments", [["--target", "nothing"], ["--minutes", "many"]])
def test_a_wrong_argument_is_refused_before_the_build(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fuzz.campaign", *arguments],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert arguments[1] in result.stderr
