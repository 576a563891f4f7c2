"""Records a host, so that an agent can run on a replica of it elsewhere: `dra-agent doctor --record DIR`.

It changes no setting and needs no root. Each step has a deadline; the manifest lists the parts that a step cannot read.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dra_agent import __version__, atomic_file
from dra_agent.deadline import Deadline
from dra_agent.doctor.record.identity import Replacements
from dra_agent.doctor.record.tools import installed, run_tools
from dra_agent.doctor.record.tree import TreeReader, tree_entries
from dra_agent.doctor.record.vendor import LibraryRecorder, vendor_recordings
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.settings import InventorySettings
from dra_agent.recording import FORMAT, MANIFEST, TOOLS, TREE, Entry, Manifest, Omission, RecordedFile
from dra_agent.threads import NoThreadError, start_thread

TREE_TIMEOUT_S = 120.0
TOOLS_TIMEOUT_S = 240.0
_ROUTES = ("proc/net/route", "proc/self/net/route")
_ROUTES6 = ("proc/net/ipv6_route", "proc/self/net/ipv6_route")


@dataclass
class _Content:
    """The results so far; a step that exceeds its deadline keeps its partial results."""

    entries: list[Entry] = field(default_factory=list)
    libraries: list[LibraryRecorder] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    omitted: list[Omission] = field(default_factory=list)


def record(
    host: Host,
    folder: Path,
    *,
    settings: InventorySettings | None = None,
    with_identity: bool = False,
    hostname: str = "",
    replacements: Replacements | None = None,
) -> Manifest:
    """Write a recording of `host` to `folder`, which must be new or empty.

    `replacements`: those of other files that are sent with the recording; None makes new ones with `hostname`.

    Raises PermanentError where the folder holds something, and RetryableError where it cannot be written.
    """
    folder = folder.absolute()
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise PermanentError("not an empty directory", where=str(folder), hint="name a new or an empty directory")
    content = _Content()
    settings = settings or InventorySettings()
    reader = TreeReader(host, Deadline.of(TREE_TIMEOUT_S))
    _step("the tree", TREE_TIMEOUT_S, content.omitted, reader.collect)
    content.entries = list(tree_entries(reader))
    content.omitted += reader.omitted
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        content.libraries = [vendor.library() for vendor in vendor_recordings() if vendor.library is not None]
        for library in content.libraries:
            _record_library(library, host, settings, partial, content)
        _step("tools", TOOLS_TIMEOUT_S, content.omitted, lambda: _record_tools(host, content))
        if not with_identity:
            _replace_identity(content, replacements or Replacements(secrets.token_bytes(32), hostname))
        manifest = _write(partial, content, installed(host), with_identity=with_identity)
        with suppress(FileNotFoundError):
            folder.rmdir()
        partial.rename(folder)
        atomic_file.sync_directory(folder.parent)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _step(name: str, timeout: float, omitted: list[Omission], work: Callable[[], None]) -> None:
    """Do a part of the work on a thread that is abandoned at the deadline: the kernel may never return."""
    failure: list[str] = []

    def run() -> None:
        try:
            work()
        except AgentError as error:
            failure.append(str(error))
        except Exception as error:  # noqa: BLE001 - one part that fails must not lose the others
            failure.append(f"{type(error).__name__}: {error}")

    try:
        thread = start_thread(f"record {name}", run)
    except NoThreadError as error:
        failure.append(str(error))
    else:
        thread.join(timeout + 1)
        if thread.is_alive():
            failure.append(f"not complete within {timeout:g} s")
    omitted += [Omission(name, reason) for reason in failure]


def _record_library(
    library: LibraryRecorder, host: Host, settings: InventorySettings, partial: Path, content: _Content
) -> None:
    def work() -> None:
        content.omitted += library.record(host, settings, partial, Deadline.of(library.timeout_s))

    _step(library.name, library.timeout_s, content.omitted, work)
    content.omitted += library.load(partial)


def _record_tools(host: Host, content: _Content) -> None:
    for output in run_tools(host, content.entries):
        if output.reason:
            content.omitted.append(Omission(output.tool.name, output.reason))
        else:
            content.outputs[f"{TOOLS}/{output.tool.file}"] = output.text


def _replace_identity(content: _Content, replacements: Replacements) -> None:
    vendors = vendor_recordings()
    for entry in content.entries:
        for vendor in vendors:
            vendor.learn(entry, replacements)
    for output in content.outputs.values():
        replacements.learn_from(output)
    for library in content.libraries:
        library.learn(replacements)
    content.entries = [_without_identity(entry, replacements) for entry in content.entries]
    content.outputs = {path: replacements.tool_output(text) for path, text in content.outputs.items()}
    for library in content.libraries:
        library.replace_identity(replacements)
    content.omitted = [Omission(replacements.text(one.where), replacements.text(one.reason)) for one in content.omitted]


def _without_identity(entry: Entry, replacements: Replacements) -> Entry:
    text, data = entry.text, entry.data
    if entry.path in (*_ROUTES, *_ROUTES6):
        routes = _routes if entry.path in _ROUTES else _routes6
        # A name of an interface that is not UTF-8 makes all of the file bytes; its lines are dropped, as it is.
        lines = entry.content.decode(errors="replace").splitlines()
        text, data = "".join(f"{line}\n" for line in routes(lines) if "\ufffd" not in line), None
    if data is not None:
        data = replacements.data(bytes.fromhex(data)).hex()
    return msgspec.structs.replace(
        entry,
        path=replacements.text(entry.path),
        text=replacements.text(text) if text is not None else None,
        link=replacements.text(entry.link) if entry.link is not None else None,
        data=data,
    )


def _routes(lines: list[str]) -> Iterable[str]:
    """Keep routes without their addresses: Iface Destination Gateway Flags ... Mask ..., numbers in hexadecimal.

    Which kind of route an interface carries decides whether the host uses it: default, with a gateway, on the link.
    """
    yield from lines[:1]
    for line in lines[1:]:
        fields = line.split("\t")
        try:
            destination, mask = (int(fields[column], 16).to_bytes(4, sys.byteorder) for column in (1, 7))
        except (IndexError, ValueError, OverflowError):
            continue
        other = int.from_bytes(_network(destination, int.from_bytes(mask).bit_count()), sys.byteorder)
        yield "\t".join([fields[0], f"{other:08X}", "00000000", *fields[3:]])


def _routes6(lines: list[str]) -> Iterable[str]:
    """Keep routes without their addresses: destination, length, source, length, next hop, ..., flags, interface."""
    for line in lines:
        fields = line.split()
        try:
            destination, prefix = bytes.fromhex(fields[0]).rjust(16, b"\0"), int(fields[1], 16)
            other = _network(destination, prefix).hex()
            yield " ".join([other, fields[1], "0" * 32, fields[3], "0" * 32, *fields[5:9], f"{fields[9]:>8}"])
        except (IndexError, ValueError):
            continue


def _network(destination: bytes, prefix: int) -> bytes:
    """Return a documentation network of the same length; those of link-local and multicast addresses stay."""
    network = ipaddress.ip_network((destination, prefix), strict=False)
    if network.is_link_local or network.is_multicast:
        return destination
    documented = "192.0.2.0" if network.version == 4 else "2001:db8::"
    return ipaddress.ip_network((documented, prefix), strict=False).network_address.packed


def _write(partial: Path, content: _Content, programs: tuple[str, ...], *, with_identity: bool) -> Manifest:
    encoder = msgspec.json.Encoder()
    files = {TREE: b"".join(encoder.encode(entry) + b"\n" for entry in content.entries)}
    files |= {library.file: calls for library in content.libraries if (calls := library.content())}
    files |= {path: text.encode() for path, text in content.outputs.items()}
    if content.outputs:
        (partial / TOOLS).mkdir(mode=0o755)
    for path, data in files.items():
        atomic_file.write(partial / path, data, mode=0o644, durable=True)
    manifest = Manifest(
        format=FORMAT,
        agent=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251 - a moment that people are shown
        kernel=_kernel(content.entries),
        drivers=dict(_drivers(content.entries)),
        programs=programs,
        identity=with_identity,
        files=tuple(RecordedFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()),
        omitted=tuple(content.omitted[:1000]),
    )
    atomic_file.write(
        partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1), mode=0o644, durable=True
    )
    return manifest


def _kernel(entries: list[Entry]) -> str:
    path = "proc/sys/kernel/osrelease"
    return next(((entry.text or "").strip() for entry in entries if entry.path == path), "")


def _drivers(entries: list[Entry]) -> Iterable[tuple[str, str]]:
    for entry in entries:
        parts = entry.path.split("/")
        if parts[:2] == ["sys", "module"] and len(parts) == 4 and parts[3] == "version":
            yield parts[2], (entry.text or "").strip()


def _unwritable(folder: Path, error: OSError) -> RetryableError:
    return RetryableError(
        f"the recording cannot be written: {error.strerror}",
        where=str(error.filename or folder),
        hint="make room, or name another directory",
    )
