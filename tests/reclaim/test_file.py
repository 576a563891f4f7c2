"""The signal file: its existence is a notice."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_agent.reclaim.signal import Signal, SourceError
from dra_agent.reclaim.signals.file import POLL_INTERVAL_S, FileSource
from eventually import DEADLINE_S, eventually
from fake_clock import FakeTime
from reclaim.recording_sink import RecordingSink, fast_schedule, run_source

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reclaim"


class FakePauses:
    """Time that passes only while the source waits; each wait ends with a step of another process."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self.time = FakeTime()
        self.waited_s = 0.0

    async def __call__(self, seconds: float) -> None:
        self.time.pass_(seconds)
        self.waited_s += seconds
        if self._steps:
            self._steps.pop(0)()

    def set_age(self, path: Path, seconds: float) -> None:
        stamp = self.time.wall().timestamp() - seconds
        os.utime(path, (stamp, stamp))

    def write(self, path: Path, text: str) -> None:
        """Write as `> FILE` of a shell does: into the same file, now."""
        path.write_text(text)
        self.set_age(path, 0.0)


def poll(path: Path, pauses: FakePauses | None = None) -> Sequence[Signal]:
    pauses = pauses or FakePauses()
    return asyncio.run(FileSource(path, now=lambda: NOW, wall=pauses.time.wall, sleep=pauses).poll())


def test_without_a_file_no_notice_is_reported(path: Path) -> None:
    assert poll(path) == ()


def test_the_file_is_polled(path: Path) -> None:
    async def scenario(sink: RecordingSink) -> None:
        await sink.wait_until(lambda: sink.latest("file") == ())
        path.write_text("{}")
        await sink.wait_until(lambda: sink.latest("file"))

    assert run_source(FileSource(path, make_schedule=fast_schedule), scenario).failures == []


@pytest.mark.parametrize("text", ["", "\n", "{}"])
def test_an_empty_file_is_a_notice(path: Path, text: str) -> None:
    path.write_text(text)
    (signal,) = poll(path)
    assert (signal.kind, signal.deadline, signal.sticky) == ("notice", None, False)


HINT = '{"kind": "hint"}'


@pytest.mark.parametrize("unfinished", ["", "\n", '{"kind"', '{"kind": "hint"'])
def test_a_file_that_is_being_written_is_not_reported(path: Path, unfinished: str) -> None:
    """As with `jq > FILE`, which first empties the file."""
    pauses: FakePauses = FakePauses(lambda: pauses.write(path, HINT[:9]), lambda: pauses.write(path, HINT))
    pauses.write(path, unfinished)
    assert [signal.kind for signal in poll(path, pauses)] == ["hint"]


def test_a_file_that_is_written_again_is_neither_withdrawn_nor_a_notice_without_deadline(path: Path) -> None:
    pauses: FakePauses = FakePauses(lambda: pauses.write(path, HINT))
    source = FileSource(path, now=lambda: NOW, wall=pauses.time.wall, sleep=pauses)
    pauses.write(path, HINT)
    (first,) = asyncio.run(source.poll())
    pauses.write(path, "")
    assert asyncio.run(source.poll()) == (first,)


def test_an_unfinished_file_that_is_removed_is_not_a_notice(path: Path) -> None:
    path.touch()
    assert poll(path, FakePauses(path.unlink)) == ()


def test_a_complete_notice_is_reported_without_delay(path: Path) -> None:
    pauses = FakePauses()
    pauses.write(path, '{"deadline": "2026-01-31T12:01:00Z"}')
    assert len(poll(path, pauses)) == 1 and pauses.waited_s == 0


@pytest.mark.parametrize("text", ["", "{"])
@pytest.mark.parametrize(("age_s", "waits_s"), [(0.0, 1.0), (0.75, 0.25), (1.0, 0.0), (3600.0, 0.0), (-3600.0, 1.0)])
def test_an_empty_or_malformed_file_counts_when_it_has_not_changed_for_a_poll(
    path: Path, text: str, age_s: float, waits_s: float
) -> None:
    """A file that is newer than the clock, which was stepped, is compared with itself one poll later."""
    pauses = FakePauses()
    pauses.write(path, text)
    pauses.set_age(path, age_s)
    if text:
        with pytest.raises(SourceError, match="invalid content"):
            poll(path, pauses)
    else:
        assert [signal.kind for signal in poll(path, pauses)] == ["notice"]
    assert pauses.waited_s == pytest.approx(waits_s * POLL_INTERVAL_S, abs=0.02)


def test_a_file_that_never_stops_changing_is_an_error_that_names_the_remedy(path: Path) -> None:
    pauses: FakePauses = FakePauses(*[lambda: pauses.write(path, path.read_text() + "\n")] * 100)
    pauses.write(path, "")
    with pytest.raises(SourceError, match="rename"):
        poll(path, pauses)
    assert pauses.waited_s < 60


def test_a_file_can_have_details(path: Path) -> None:
    path.write_text(
        '{"kind": "hint", "deadline": "2026-01-31T13:00:00+01:00", "event": "lease-7", "what": "lease ends"}'
    )
    assert poll(path) == (Signal("file", "hint", "lease-7", "lease ends", NOW, False, ""),)


@pytest.mark.parametrize(
    ("deadline", "seconds", "note"),
    [
        ("2026-01-31T11:00:00Z", 0, "has passed"),
        ("2096-01-31T11:00:00Z", 30, "too far"),
        ("2026-01-31T12:01:00Z", 60, ""),
    ],
)
def test_an_implausible_deadline_is_corrected(path: Path, deadline: str, seconds: int, note: str) -> None:
    path.write_text(f'{{"deadline": "{deadline}"}}')
    (signal,) = poll(path)
    assert signal.deadline == NOW + timedelta(seconds=seconds) and note in signal.deadline_note


@pytest.mark.parametrize(
    "text",
    [
        "now!",
        "[]",
        '{"kind": "clear"}',
        '{"deadline": "soon"}',
        '{"dedline": "x"}',
        '{"kind": 1}',
        "\xff\xff",
        "{}" * 4096,
    ],
)
def test_a_malformed_file_is_an_error(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError):
        poll(path)


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_a_file_that_others_can_write_is_refused(path: Path, mode: int) -> None:
    path.write_text("")
    path.chmod(mode)
    with pytest.raises(SourceError, match="written by others"):
        poll(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    path.write_text("")
    os.chown(path, 12345, 12345)
    with pytest.raises(SourceError, match="written by others"):
        poll(path)


def test_links_pipes_and_directories_are_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="cannot be read"):
        poll(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SourceError, match="not a regular file"):
        poll(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        poll(path)


def test_the_size_limit_is_exact(path: Path) -> None:
    path.write_text("{}" + " " * 4094)
    assert len(poll(path)) == 1
    path.write_text("{}" + " " * 4095)
    with pytest.raises(SourceError, match="longer than 4096 bytes"):
        poll(path)


def test_an_oversized_or_growing_file_is_refused(path: Path) -> None:
    """Covers a sparse file of 1 TiB, and a file that grows while it is read."""
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SourceError, match="longer than 4096 bytes"):
        poll(path)
    path.write_bytes(b"")
    done = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not done.is_set():
                file.write(b" " * 1024)
                if file.tell() > 64 << 20:
                    file.truncate(0)  # the file may be in memory (tmpfs)

    def is_refused() -> bool:
        try:
            poll(path)
        except SourceError as error:
            return "longer than 4096 bytes" in str(error)
        return False

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        eventually(is_refused)
    finally:
        done.set()
        writer.join(DEADLINE_S)
