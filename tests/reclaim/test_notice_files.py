"""The notice files of containers follow the reclaim: every phase, restarts, and directories that cannot be written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from deadlines import a_minute
from dra_agent.clock import STEADY
from dra_agent.deadline import Deadline
from dra_agent.device_setup.notice import NoticeDirectory, ReclaimNotice
from dra_agent.device_setup.notice.document import decode
from dra_agent.reclaim import notice_files
from dra_agent.reclaim.notice_files import NoticeFiles, notice_of
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from eventually import DEADLINE_S, eventually_async

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEADLINE = NOW + timedelta(seconds=30)
HINT = Signal("azure", "hint", "e", "w")


class Node:
    """The reclaim of one node and its notice files, without an agent."""

    def __init__(self, path: Path, directory: Callable[..., NoticeDirectory] = NoticeDirectory) -> None:
        (path / "state").mkdir(exist_ok=True)
        self.reclaim = ReclaimService(path / "state", "boot", [])
        self.directory = directory(path / "notices", current=lambda: notice_of(self.reclaim.state))
        self.files = NoticeFiles(self.directory)
        self.reclaim.on_change(self.files.changed)

    async def start(self) -> None:
        await self.reclaim.start()
        self.files.start()

    async def stop(self) -> None:
        await self.reclaim.stop()
        await self.files.stop()

    def document(self, uid: str) -> ReclaimNotice:
        found = decode((self.directory.folder(uid) / "notice.json").read_bytes())
        assert found is not None
        return found

    def phases(self, *uids: str) -> list[str]:
        return [self.document(uid).phase for uid in uids]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario()

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that follow wait for the files; a test of a file that cannot be written sets this itself."""
    monkeypatch.setattr(notice_files, "HEAD_START_S", DEADLINE_S)
    monkeypatch.setattr(notice_files, "MIN_RETRY_S", 0.01)


@pytest.mark.parametrize(
    ("signals", "phase", "observed", "deadline", "source"),
    [
        ([], "none", None, None, ""),
        ([Signal("azure", "hint", "e", "w", DEADLINE)], "hint", NOW, DEADLINE, "azure"),
        ([HINT, Signal("aws.spot", "notice", "f", "w", DEADLINE)], "notice", NOW, DEADLINE, "aws.spot"),
        ([HINT, Signal("azure", "clear", "e", "w")], "cancelled", NOW, None, ""),
    ],
)
def test_content_follows_from_the_state(
    signals: list[Signal], phase: str, observed: datetime | None, deadline: datetime | None, source: str
) -> None:
    state = ReclaimState("boot")
    for signal in signals:
        state = apply(state, signal, NOW)
    found = notice_of(state, lambda time: time)
    assert (found.phase, found.observed_at, found.deadline, found.source) == (phase, observed, deadline, source)


def test_every_claim_gets_each_phase(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        claims = [f"claim-{number}" for number in range(20)]
        for uid in claims:
            node.directory.create(uid, a_minute())
        seen: list[list[str]] = []

        async def drain(before: ReclaimState, after: ReclaimState) -> None:
            seen.append(node.phases(*claims))

        node.reclaim.on_change(drain)
        await node.start()
        await node.reclaim.begin("hint", deadline=None, description="w")
        assert node.phases(*claims) == ["hint"] * 20
        deadline = STEADY.now() + timedelta(seconds=30)
        await node.reclaim.begin("notice", deadline=deadline, description="w")
        assert node.phases(*claims) == ["notice"] * 20
        document = node.document("claim-0")
        assert (document.source, document.advice) == ("operator", ("checkpoint", "drain", "exit"))
        assert document.deadline is not None and timedelta() <= deadline - document.deadline < timedelta(seconds=1)
        node.directory.create("during-the-notice", a_minute())
        await node.reclaim.cancel(everything=False)
        assert node.phases(*claims, "during-the-notice") == ["cancelled"] * 21
        node.directory.create("afterwards", a_minute())
        assert node.phases("afterwards") == ["none"]
        assert [node.document(uid).sequence for uid in ("claim-0", "during-the-notice", "afterwards")] == [4, 2, 1]
        assert node.files.failures == 0
        # The files are written before the other steps of a change.
        assert seen == [["hint"] * 20, ["notice"] * 20, ["cancelled"] * 20]
        await node.stop()

    run(scenario)


def test_the_text_of_a_signal_is_not_in_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.directory.create("a", a_minute())
        await node.start()
        await node.reclaim.begin("notice", deadline=None, description="rack 7, ticket 4711")
        text = (node.directory.folder("a") / "notice.json").read_text()
        assert "notice" in text and "4711" not in text and str(tmp_path) not in text
        await node.stop()

    run(scenario)


def test_the_next_agent_writes_what_it_has_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = Node(tmp_path)
        first.directory.create("a", a_minute())
        await first.start()
        await first.reclaim.begin("notice", deadline=None, description="w")
        written = first.document("a")
        await first.stop()

        restarted = Node(tmp_path)
        restarted.directory.create("b", a_minute())
        await restarted.start()
        assert restarted.document("a") == written and restarted.phases("b") == ["notice"]
        (restarted.directory.folder("b") / "notice.json").unlink()
        await restarted.stop()

        after_boot = Node(tmp_path)
        after_boot.reclaim.state = ReclaimState("boot-2")
        await after_boot.start()
        await eventually_async(lambda: after_boot.document("a").phase == "none")
        await eventually_async(lambda: (after_boot.directory.folder("b") / "notice.json").exists())
        assert after_boot.document("a").sequence == written.sequence + 1
        await after_boot.stop()

    run(scenario)


def test_a_directory_that_cannot_be_written_is_retried_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        for uid in ("a", "broken", "c"):
            node.directory.create(uid, a_minute())
        folder = node.directory.folder("broken")
        folder.rename(tmp_path / "aside")
        folder.write_text("not a directory")
        await node.start()
        monkeypatch.setattr(notice_files, "HEAD_START_S", 0.0)
        await node.reclaim.begin("notice", deadline=None, description="w")
        await eventually_async(lambda: node.phases("a", "c") == ["notice", "notice"])
        await eventually_async(lambda: node.files.failures > 1)
        folder.unlink()
        (tmp_path / "aside").rename(folder)
        await eventually_async(lambda: node.phases("broken") == ["notice"])
        await node.stop()

    run(scenario)
    assert "a notice file is not written" in caplog.text


class HangingDirectory(NoticeDirectory):
    """Writing the file of the claim `hangs` ends only at the end of the test."""

    released = threading.Event()

    def update(self, uid: str, deadline: Deadline) -> bool:
        if uid == "hangs":
            self.released.wait(DEADLINE_S)
        return super().update(uid, deadline)


def test_a_write_that_hangs_delays_neither_other_files_nor_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice_files, "HEAD_START_S", 0.0)
    monkeypatch.setattr(notice_files, "WRITE_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        node = Node(tmp_path, HangingDirectory)
        for uid in ("a", "hangs", "z"):
            node.directory.create(uid, a_minute())
        drained = asyncio.Event()

        async def drain(before: ReclaimState, after: ReclaimState) -> None:
            drained.set()

        node.reclaim.on_change(drain)
        await node.start()
        await node.reclaim.begin("notice", deadline=None, description="w")
        await drained.wait()
        await eventually_async(lambda: node.phases("a", "z") == ["notice", "notice"])
        await eventually_async(lambda: node.files.failures > 0)
        await node.reclaim.cancel(everything=False)
        await eventually_async(lambda: node.phases("a", "z") == ["cancelled", "cancelled"])
        assert node.phases("hangs") == ["none"]
        HangingDirectory.released.set()
        await eventually_async(lambda: not node.files.pending)
        assert node.phases("hangs") == ["none"], "it was not notified, and so there is no cancellation"
        await node.stop()

    run(scenario)


def test_a_claim_that_is_released_meanwhile_is_not_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        node.directory.create("a", a_minute())
        await node.start()
        await node.reclaim.begin("hint", deadline=None, description="w")
        node.directory.remove("a", a_minute())
        await node.reclaim.begin("notice", deadline=None, description="w")
        assert not node.directory.folder("a").exists() and node.files.failures == 0
        await node.stop()

    run(scenario)


def test_files_that_were_left_to_an_agent_are_written_after_its_end(tmp_path: Path) -> None:
    """As when the new agent of a rolling update fails while it starts."""
    is_newest = True

    async def scenario() -> None:
        nonlocal is_newest
        node = Node(tmp_path, partial(NoticeDirectory, may_replace=lambda: is_newest))
        for uid in ("a", "b"):
            node.directory.create(uid, a_minute())
        await node.start()
        is_newest = False
        await node.reclaim.begin("notice", deadline=None, description="w")
        node.files.resume()
        await eventually_async(lambda: not node.files.pending)
        assert node.phases("a", "b") == ["none", "none"]
        node.directory.remove("b", a_minute())
        is_newest = True
        node.files.resume()
        await eventually_async(lambda: node.phases("a") == ["notice"])
        assert node.directory.uids() == ["a"] and not node.directory.take_left()
        await node.stop()

    run(scenario)


def test_files_that_a_newer_agent_has_removed_are_not_looked_for_again(tmp_path: Path) -> None:
    """It has served the release of the claim, and has ended."""
    is_newest = True

    async def scenario() -> None:
        nonlocal is_newest
        node = Node(tmp_path, partial(NoticeDirectory, may_replace=lambda: is_newest))
        node.directory.create("a", a_minute())
        await node.start()
        is_newest = False
        await node.reclaim.begin("notice", deadline=None, description="w")
        await eventually_async(lambda: not node.files.pending)
        NoticeDirectory(tmp_path / "notices").remove("a", a_minute())
        is_newest = True
        node.files.resume()
        assert not node.directory.take_left()
        await node.stop()

    run(scenario)
