"""The agent's files in a CDI directory: complete or absent, without foreign files, never outside."""

from __future__ import annotations

import os
import string
import threading
from pathlib import Path

import pytest

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.names import claim_device, parse
from dra_agent.cdi.registry import spec_names
from dra_agent.errors import PermanentError, RetryableError
from eventually import eventually
from last_write import last_write

DRIVER = "dra-agent.internal"


@pytest.fixture
def specs(tmp_path: Path) -> SpecDirectory:
    return SpecDirectory(tmp_path / "cdi", DRIVER)


def test_a_spec_is_readable_for_everyone(specs: SpecDirectory) -> None:
    umask = os.umask(0o077)
    try:
        path = specs.write("uid-1", b"{}\n")
    finally:
        os.umask(umask)
    assert path == specs.path / "dra-agent.internal-claim_uid-1.json"
    assert path.stat().st_mode & 0o777 == 0o644 and specs.path.stat().st_mode & 0o777 == 0o700
    assert specs.read("uid-1") == b"{}\n" and specs.claims() == {"uid-1": path}


def test_only_changed_specs_are_written(specs: SpecDirectory) -> None:
    assert specs.ensure("u", b"one") is True
    before = last_write(specs.file("u"))
    assert specs.ensure("u", b"one") is False and last_write(specs.file("u")) == before
    assert specs.ensure("u", b"one more") is True and specs.read("u") == b"one more"


def test_readers_never_see_a_partial_spec(specs: SpecDirectory) -> None:
    """As a runtime does: list the directory and read every *.json and *.yaml, while specs are written."""
    texts = {(letter * 20000).encode() for letter in "abc"}
    stop = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            for path in specs.path.glob("*"):
                seen.extend([path.read_bytes()] if path.suffix in {".json", ".yaml"} else [])

    specs.write("u", b"a" * 20000)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: seen)
        for _ in range(60):
            for text in texts:
                specs.write("u", text)
    finally:
        stop.set()
        reader.join()
    assert seen and set(seen) <= texts
    assert [path.name for path in specs.path.iterdir()] == [specs.file("u").name]


@pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", "a\0b", ".hidden", "a\n", "-a", "a" * 129, "ü"])
def test_a_uid_never_leaves_the_directory(specs: SpecDirectory, uid: str) -> None:
    for method in (specs.file, specs.read, specs.delete):
        with pytest.raises(PermanentError, match="claim uid"):
            method(uid)
    with pytest.raises(PermanentError):
        specs.write(uid, b"")


def test_foreign_files_are_neither_listed_nor_removed(specs: SpecDirectory) -> None:
    specs.write("mine", b"{}")
    names = [
        "nvidia.yaml",
        "dra-agent.internal-claim_x.yaml",
        "dra-agent.internal-claim_.json",
        "dra-agent.internal-claim_a b.json",
        "dra-agent.internal-claim.json",
        "other-dra-agent.internal-claim_x.json",
        ".other-claim_x.json.1-1.tmp",
        "dra-agent.internal-claim_x.json.bak",
    ]
    for name in names:
        (specs.path / name).touch()
    assert specs.claims().keys() == {"mine"}
    assert specs.remove_leftovers() == []
    assert all((specs.path / name).exists() for name in names)


def test_temporary_files_of_a_killed_agent_are_removed(specs: SpecDirectory) -> None:
    specs.write("u", b"{}")
    leftover = specs.path / f".{specs.file('u').name}.123-4.tmp"
    leftover.touch()
    assert leftover.suffix not in {".json", ".yaml"}, "runtimes would read it"
    assert specs.remove_leftovers() == [leftover] and specs.read("u") == b"{}"


def test_a_full_disk_is_reported_and_keeps_the_old_spec(specs: SpecDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    specs.write("u", b"old")

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        RetryableError, match=r"claim_u.json: cannot write the claim's CDI spec: No space left on device"
    ):
        specs.write("u", b"new")
    assert specs.read("u") == b"old" and len(list(specs.path.iterdir())) == 1


def test_a_short_write_is_continued(specs: SpecDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    specs.write("u", b"0123456789")
    assert specs.read("u") == b"0123456789"


def test_a_directory_without_permission_is_reported(specs: SpecDirectory) -> None:
    specs.path.mkdir()
    specs.path.chmod(0o500)
    with pytest.raises(RetryableError, match="Permission denied"):
        specs.write("u", b"")
    specs.path.chmod(0o700)


def test_special_files_in_place_of_a_spec_are_not_read(specs: SpecDirectory) -> None:
    specs.path.mkdir()
    specs.file("pipe").parent.mkdir(exist_ok=True)
    os.mkfifo(specs.file("pipe"))
    specs.file("folder").mkdir()
    assert specs.read("pipe") is None and specs.read("folder") is None and specs.read("absent") is None
    assert specs.ensure("pipe", b"{}") and specs.read("pipe") == b"{}"
    with pytest.raises(RetryableError, match="Is a directory"):
        specs.write("folder", b"{}")


def test_a_missing_directory_is_empty(specs: SpecDirectory) -> None:
    assert specs.claims() == {} and specs.remove_leftovers() == [] and specs.delete("u") is False


@pytest.mark.parametrize("driver", ["3com.example", "", "a/b", "a.", "x" * 64, "Größe"])
def test_a_driver_name_that_is_not_a_cdi_vendor_is_refused(driver: str, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="driver name"):
        SpecDirectory(tmp_path, driver)


def test_cdi_names_have_no_character_that_a_shell_expands() -> None:
    """Command lines contain them without quotes."""
    for character in set(string.printable) - set(string.ascii_letters + string.digits + "_.:/=-"):
        for text in (f"a{character}b/c=d", f"a/b{character}c=d", f"a/b=c{character}d", f"a/b=c{character}"):
            with pytest.raises(PermanentError):
                parse(text)


def test_cdi_names_are_parsed_and_formatted() -> None:
    assert str(parse("vendor.com/class=a:b")) == "vendor.com/class=a:b"
    assert claim_device("u", "gpu-0") == "u-gpu-0" and claim_device("u", "gpu-0", "s") == "u-gpu-0-s"
    for bad in ("", "vendor", "vendor/class", "vendor/class=", "/class=a", "vendor/=a", "v/c=a/b", "1v/c=a", "v/c=-"):
        with pytest.raises(PermanentError, match="vendor/class=name"):
            parse(bad)


def test_names_of_specs_are_those_of_files_without_claims(tmp_path: Path) -> None:
    for name in ("b.json", "a.yaml", ".hidden.json", "x-claim_1.json", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "directory.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "directory.json")
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "absent")
    own = [".hidden.json", "a.yaml", "b.json", "dangling.yaml", "link.json"]
    assert spec_names(tmp_path, without="-claim_") == own
    assert spec_names(tmp_path) == [*own, "x-claim_1.json"]
    assert spec_names(tmp_path / "absent") == []
