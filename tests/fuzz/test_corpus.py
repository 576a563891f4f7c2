"""Committed inputs of Python targets keep their properties; `rust/lab/fuzz/tests/corpus.rs` checks those of Rust."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fuzz import corpus
from fuzz.targets import PYTHON, ROOT, TARGETS

DEADLINE_S = 600


def replay(name: str, files: list[Path], temporary: Path) -> subprocess.CompletedProcess[str]:
    """Check inputs in a separate process: a target changes its process and serves until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "fuzz.replay", name, *map(str, files)],
        cwd=ROOT / "tests",
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("name", [target.name for target in PYTHON])
def test_committed_inputs_keep_the_properties_of_their_target(name: str, short_path: Path, tmp_path: Path) -> None:
    inputs = corpus.unpack(corpus.archive(name), tmp_path)
    result = replay(name, inputs, short_path)
    assert result.returncode == 0, result.stderr


def test_a_failing_input_is_named(short_path: Path) -> None:
    absent = short_path / "absent"
    result = replay("config", [absent], short_path)
    assert result.returncode != 0 and f"{absent}: FileNotFoundError" in result.stderr


@pytest.mark.parametrize("name", TARGETS)
def test_a_committed_archive_is_packed_as_the_program_packs_it(name: str) -> None:
    path = corpus.archive(name)
    assert lzma.decompress(path.read_bytes()) == corpus.pack(corpus.read(path)), "sorted, without owner and times"


def test_the_order_in_which_inputs_were_added_does_not_matter(tmp_path: Path) -> None:
    for name, inputs in (("a", {"x": b"1", "y": b"2"}), ("b", {"y": b"2", "x": b"1"})):
        corpus.write(corpus.archive(name, tmp_path), inputs)
    one, other = (corpus.archive(name, tmp_path).read_bytes() for name in "ab")
    assert one == other


def test_inputs_are_listed_added_replaced_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> int:
        return corpus.main(["--corpus", str(tmp_path / "archives"), *map(str, arguments)])

    (tmp_path / "archives").mkdir()
    for name, content in (("first", b"1"), ("second", b"22")):
        (tmp_path / name).write_bytes(content)
    assert run("add", "quantity", tmp_path / "second", tmp_path / "first") == 0
    (tmp_path / "second").write_bytes(b"333")
    assert run("add", "quantity", tmp_path / "second") == 0
    assert run("list", "quantity") == 0
    assert capsys.readouterr().out.split() == ["1", "first", "3", "second"]

    unpacked = tmp_path / "unpacked" / "quantity"
    assert run("unpack", unpacked.parent) == 0
    assert {path.name: path.read_bytes() for path in unpacked.iterdir()} == {"first": b"1", "second": b"333"}
    assert run("remove", "quantity", "first") == 0
    assert run("unpack", unpacked.parent) == 0
    assert [path.name for path in unpacked.iterdir()] == ["second"], "a removed input does not stay in the folder"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "absent"], "absent.tar.xz: No such file or directory"),
        (["remove", "quantity", "other"], "quantity.tar.xz has no input other"),
        (["remove", "quantity", "only"], "quantity.tar.xz: the archive of a target has at least one input"),
        (["add", "quantity", "/absent/file"], "/absent/file: No such file or directory"),
    ],
)
def test_an_impossible_change_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = corpus.archive("quantity", tmp_path)
    corpus.write(path, {"only": b"1"})
    before = path.read_bytes()
    assert corpus.main(["--corpus", str(tmp_path), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_damaged_archive_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    path = corpus.archive("quantity", tmp_path)
    corpus.write(path, {"first": b"1", "second": b"2"})
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        for content in (bytes(damaged), whole[:at]):
            path.write_bytes(content)
            with pytest.raises(corpus.CorpusError, match=rf"{path} is damaged: .+ git checkout -- {path}"):
                corpus.read(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("folder/input", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("folder", tarfile.DIRTYPE),
    ],
)
def test_a_member_that_is_not_an_input_is_refused(name: str, kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    path = corpus.archive("quantity", tmp_path)
    with tarfile.open(path, "w:xz") as opened:
        opened.addfile(member)
    with pytest.raises(corpus.CorpusError, match="is not a regular file in the archive's root"):
        corpus.unpack(path, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_a_name_that_two_inputs_have_is_refused(tmp_path: Path) -> None:
    path = corpus.archive("quantity", tmp_path)
    with tarfile.open(path, "w:xz") as opened:
        for _ in range(2):
            opened.addfile(tarfile.TarInfo("same"))
    with pytest.raises(corpus.CorpusError, match="has 2 members, 1 of them with different names"):
        corpus.read(path)
