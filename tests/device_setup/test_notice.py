"""The notice file: its directory on the host, its mount in containers, and its content."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest

from deadlines import a_minute
from dra_agent.cdi.model import Mount
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.notice import NoticeDirectory, NoticeSetup, ReclaimNotice, ReclaimNoticeConfig
from dra_agent.device_setup.notice.document import NONE, decode, encode, notice, schema, successor
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device, Family
from dra_agent.prepare.setup import DeviceSetup, SetupDevice
from eventually import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs/reference/reclaim-notice.schema.json"
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def device(name: str, family: Family = "gpu") -> SetupDevice:
    allocated = ClaimDevice(f"n/{family}", name, (family,))
    return SetupDevice(allocated, Device(name, family, "nvidia", "0000:1b:00.0", {}))


class Host:
    """The notice of a host, and the directories of its claims."""

    def __init__(self, path: Path, *, is_newest: bool = True, keeps_notice: bool = False) -> None:
        self.current = NONE
        self.directory = NoticeDirectory(
            path, current=lambda: self.current, may_replace=lambda: is_newest, keeps_notice=keeps_notice
        )
        self.setup = NoticeSetup(self.directory)

    def set_up(self, uid: str = UID) -> Path:
        self.setup.set_up(uid, [device("gpu-0")], ReclaimNoticeConfig(), None, a_minute())
        return self.directory.folder(uid) / "notice.json"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "notices")


def content(path: Path) -> ReclaimNotice:
    document = decode(path.read_bytes())
    assert document is not None, path.read_text()
    return document


def test_each_device_of_a_claim_mounts_the_same_directory_read_only(host: Host) -> None:
    setup: DeviceSetup = host.setup
    devices = [device("gpu-0"), device("nic-0", "nic")]
    outcome = setup.set_up(UID, devices, ReclaimNoticeConfig(), None, a_minute())
    folder = host.directory.folder(UID)
    edits = outcome.edits["gpu-0"]
    assert edits == outcome.edits["nic-0"] and outcome.record is None
    path = f"/run/dra-agent/notice/{UID}"
    assert edits.mounts == (Mount(str(folder), path, ("ro", "nosuid", "nodev", "noexec", "bind")),)
    assert edits.env == (f"DRA_AGENT_NOTICE_DIR={path}",)
    assert [path.name for path in folder.iterdir()] == ["notice.json"]
    assert json.loads((folder / "notice.json").read_text()) == {
        "apiVersion": "dra-agent.internal/v1",
        "kind": "ReclaimNotice",
        "sequence": 1,
        "phase": "none",
        "advice": [],
    }


def test_containers_read_it_under_any_umask(host: Host) -> None:
    before = os.umask(0o077)
    try:
        path = host.set_up()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_a_claim_that_is_prepared_during_a_notice_starts_with_it(host: Host) -> None:
    host.current = notice("notice", observed_at=NOW, deadline=NOW + timedelta(seconds=30), source="aws.spot")
    path = host.set_up()
    assert json.loads(path.read_text()) == {
        "apiVersion": "dra-agent.internal/v1",
        "kind": "ReclaimNotice",
        "sequence": 1,
        "phase": "notice",
        "advice": ["checkpoint", "drain", "exit"],
        "observedAt": "2026-03-01T12:00:00.123000Z",
        "deadline": "2026-03-01T12:00:30Z",
        "source": "aws.spot",
    }


def test_a_repeat_repairs_directory_and_file(host: Host) -> None:
    path = host.set_up()
    path.unlink()
    path.parent.rmdir()
    assert content(host.set_up()).phase == "none"
    path.write_text("{")
    path.with_name(".notice.json.0123456789abcdef.tmp").write_text("of a killed agent")
    assert content(host.set_up()).phase == "none"
    assert list(path.parent.iterdir()) == [path]


def test_an_update_replaces_the_file_and_not_its_directory(host: Host) -> None:
    path = host.set_up()
    directory, file = path.parent.stat().st_ino, path.open()
    host.current = notice("hint", observed_at=NOW, source="azure")
    assert host.directory.update(UID, a_minute()) and not host.directory.update(UID, a_minute())
    assert content(path).phase == "hint" and content(path).sequence == 2
    assert path.parent.stat().st_ino == directory
    with file:
        assert json.load(file)["phase"] == "none", "a reader has one whole document"


def test_a_link_is_never_followed(host: Host, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    host.directory.path.mkdir()
    host.directory.folder(UID).symlink_to(other)
    with pytest.raises(RetryableError, match="notice file"):
        host.set_up()
    with pytest.raises(RetryableError, match="notice file"):
        host.directory.update(UID, a_minute())
    (other / "kept").touch()
    with pytest.raises(RetryableError, match="notice file"):
        host.directory.remove(UID, a_minute())
    (other / "kept").unlink()
    assert not list(other.iterdir()) and stat.S_IMODE(other.stat().st_mode) == 0o700
    (other / "secret").write_text("a secret")
    path = host.set_up("uid-2")
    path.unlink()
    path.symlink_to(other / "secret")
    assert content(host.set_up("uid-2")).phase == "none" and not path.is_symlink()
    assert (other / "secret").read_text() == "a secret"


@pytest.mark.parametrize("uid", ["..", "../x", "a/b", "", ".hidden", "a\nb", "x" * 200])
def test_no_uid_becomes_another_path(host: Host, uid: str) -> None:
    with pytest.raises(PermanentError, match="file name"):
        host.set_up(uid)
    with pytest.raises(PermanentError, match="file name"):
        host.setup.tear_down(uid, ["gpu-0"], None, a_minute())
    assert not host.directory.path.exists()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be written: EFBIG, as Python ignores SIGXFSZ (setrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_prepared_claim_keeps_its_file_on_a_full_disk(host: Host) -> None:
    path = host.set_up()
    host.current = notice("hint", observed_at=NOW, source="azure")
    with full_disk():
        host.set_up()
        with pytest.raises(RetryableError, match="cannot write the claim's notice file"):
            host.directory.update(UID, a_minute())
        with pytest.raises(RetryableError, match="cannot create the claim's notice file"):
            host.set_up("another-claim")
    assert content(path).phase == "none" and list(path.parent.iterdir()) == [path]
    assert host.directory.update(UID, a_minute()) and content(path).phase == "hint"


def test_a_prepare_fails_without_a_directory(host: Host) -> None:
    path = host.set_up()
    host.directory.path.rename(host.directory.path.with_name("moved"))
    host.directory.path.write_text("not a directory")
    with pytest.raises(RetryableError, match="cannot create the claim's notice file"):
        host.set_up()
    host.directory.path.unlink()
    host.directory.path.with_name("moved").rename(host.directory.path)
    assert content(path).phase == "none"


def test_release_removes_the_directory(host: Host) -> None:
    path = host.set_up()
    host.setup.roll_back(UID, ["gpu-0"], ReclaimNoticeConfig(), a_minute())
    assert not path.parent.exists() and not host.directory.update(UID, a_minute())
    host.setup.tear_down(UID, ["gpu-0"], None, a_minute())


def test_directories_of_unknown_claims_are_removed(host: Host) -> None:
    kept, removed = host.set_up("a"), host.set_up("b")
    host.setup.prune(lambda uid: uid == "a")
    assert kept.exists() and not removed.parent.exists()


def test_the_directory_of_a_claim_that_starts_while_unknown_ones_are_removed_is_kept(host: Host) -> None:
    path = host.set_up("a")
    prepare = threading.Thread(target=host.set_up, args=("a",))

    def is_held(uid: str) -> bool:
        """Return that the claim holds nothing. Another thread prepares it meanwhile."""
        prepare.start()
        prepare.join(0.2)
        return False

    host.setup.prune(is_held)
    prepare.join(DEADLINE_S)
    assert path.exists()


def test_the_file_outlives_a_claim_that_is_released_under_its_containers(tmp_path: Path) -> None:
    host = Host(tmp_path / "notices", keeps_notice=True)
    path = host.set_up()
    host.current = notice("notice", observed_at=NOW, source="operator")
    host.directory.update(UID, a_minute())
    host.setup.tear_down(UID, ["gpu-0"], None, a_minute())
    host.setup.prune(lambda uid: False)
    assert content(path).phase == "notice"
    host.current = notice("cancelled", observed_at=NOW)
    host.setup.tear_down(UID, ["gpu-0"], None, a_minute())
    assert not path.exists()


def test_an_agent_that_is_being_replaced_changes_no_file(tmp_path: Path) -> None:
    newest, older = Host(tmp_path / "notices"), Host(tmp_path / "notices", is_newest=False)
    newest.current = notice("notice", observed_at=NOW, source="aws.spot")
    path = newest.set_up()
    assert older.set_up() == path and not older.directory.update(UID, a_minute())
    assert content(path).phase == "notice"
    assert content(older.set_up("prepared-by-the-older-one")).phase == "none"


def test_sequence_increases_with_each_change_and_only_then() -> None:
    hint = notice("hint", observed_at=NOW, deadline=NOW + timedelta(hours=1), source="azure")
    first = successor(None, hint)
    assert first.sequence == 1 and successor(first, hint) is first
    microseconds = notice("hint", observed_at=NOW + timedelta(microseconds=2), deadline=hint.deadline, source="azure")
    assert successor(first, microseconds) is first
    for change in (
        notice("hint", observed_at=NOW, deadline=NOW + timedelta(minutes=50), source="azure"),
        notice("hint", observed_at=NOW, source="azure"),
        notice("hint", observed_at=NOW, deadline=hint.deadline, source="aws.rebalance"),
        notice("notice", observed_at=NOW, deadline=hint.deadline, source="azure"),
        notice("cancelled", observed_at=NOW),
        NONE,
    ):
        assert successor(first, change).sequence == 2


def test_the_file_of_a_newer_agent_keeps_its_sequence() -> None:
    newer = json.loads(encode(successor(None, notice("notice"))))
    previous = decode(json.dumps({**newer, "sequence": 7, "newField": 1}).encode())
    following = successor(previous, notice("cancelled"))
    assert (following.sequence, following.phase) == (8, "cancelled")


def test_a_container_that_was_not_notified_sees_no_cancellation() -> None:
    cancelled = notice("cancelled", observed_at=NOW)
    started = successor(None, cancelled)
    assert (started.phase, started.sequence) == ("none", 1) and successor(started, cancelled) is started
    hint = successor(started, notice("hint", observed_at=NOW, source="azure"))
    assert successor(hint, cancelled).phase == "cancelled"


def test_documents_match_the_published_schema() -> None:
    published = json.loads(SCHEMA.read_text())
    assert published == schema(), f"{SCHEMA.name} is not current"
    for document in (
        NONE,
        notice("hint", observed_at=NOW, deadline=NOW, source="azure"),
        notice("notice", observed_at=NOW, source="operator"),
        notice("cancelled", observed_at=NOW),
    ):
        value = json.loads(encode(successor(None, document)))
        jsonschema.validate(value, published)
        jsonschema.validate({**value, "later": "field"}, published)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, "phase": "over"}, published)
