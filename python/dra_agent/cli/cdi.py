"""`dra-agent cdi`: the CDI specs of claims, their effect on a container, and a check of CDI directories."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.cli.output import ID_FORMATS, add_output_flag, emit, emit_ids, prints_names
from dra_agent.cli.parser import Parser, add_group_examples, examples
from dra_agent.cli.table import table
from dra_agent.cli.terminal import progress

if TYPE_CHECKING:
    from dra_agent.cdi.directory import SpecDirectory
    from dra_agent.cdi.registry import Conflict, LoadedFile, Registry
    from dra_agent.cli.object_names import ObjectName

_REBUILD = "restart the agent: it writes the specs of held claims again"

_LIST_EXAMPLES = (("cdi list", "which claims have a spec, and its ids"),)
_SHOW_EXAMPLES = (
    ("cdi show train", "device nodes, mounts and variables of a claim, by its name"),
    ("cdi show team-a/train -o json", "the edits of a claim of another namespace, for programs"),
)
_TRY_EXAMPLES = (("cdi try train", "test that a container of this host gets the devices of the claim"),)
_VALIDATE_EXAMPLES = (
    ("cdi validate", "the directories that container runtimes read"),
    ("cdi validate /etc/cdi /var/run/cdi", "these, lowest priority first"),
)


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim that has a spec."""

    uid: str
    claim: str | None
    file: str
    cdi_device_ids: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file of a CDI directory."""

    file: str
    kind: str | None
    devices: int
    refused: tuple[str, ...]
    warnings: tuple[str, ...]


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands and their flags."""
    from dra_agent.agent.config import add_flags

    parser.add_commands(dest="action", metavar="ACTION")
    listing = parser.add_command(
        "list", "show the claims that have a spec, with their CDI ids", epilog=examples(*_LIST_EXAMPLES)
    )
    show = parser.add_command(
        "show",
        "show the changes to a container for claims or CDI ids, and the commands that start one",
        epilog=examples(*_SHOW_EXAMPLES),
    )
    attempt = parser.add_command(
        "try",
        "start a temporary container with claims or CDI ids, and show its devices",
        epilog=examples(*_TRY_EXAMPLES),
    )
    for action in (show, attempt):
        action.add_argument(
            "name",
            nargs="+",
            metavar="CLAIM",
            help="a claim, as NAME, NAMESPACE/NAME or uid, or a CDI id (vendor/class=name)",
        )
    validate = parser.add_command(
        "validate",
        "list the files that a container runtime refuses, and why",
        epilog=examples(*_VALIDATE_EXAMPLES),
    )
    validate.add_argument(
        "directory", nargs="*", type=Path, help="lowest priority first; default: the directories that runtimes read"
    )
    for action in (listing, show, attempt, validate):
        add_flags(action, ("state_dir", "cdi_dir", "driver_name"))
    for action in (listing, show, validate):
        add_output_flag(action, cdi=action is not validate, names=action is listing)
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    actions = {"list": _list, "show": _show, "try": _try, "validate": _validate}
    return actions[args.action](args)


def _specs(args: argparse.Namespace) -> tuple[SpecDirectory, Path]:
    """Return the directory that the agent of this configuration writes to, and its state directory."""
    from dra_agent.cdi.directory import SpecDirectory
    from dra_agent.cli.shown_host import shown_host

    shown = shown_host(args)
    return SpecDirectory(shown.config.cdi_dir, shown.config.driver_name), shown.records


def _recorded_ids(state_dir: Path) -> dict[str, tuple[str, ...]]:
    """Return the CDI ids of claims by uid, from the ledger; empty, with a note, if it cannot be read.

    A device can have two: that of its vendor's spec, and that of the claim's own spec, which does not name the other.
    """
    from dra_agent.errors import AgentError
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.prepare.record import read

    try:
        entries, _ = read_copy(state_dir) or ([], None)
    except AgentError as error:
        print(f"note: ids of vendors' CDI specs are not known: {error}", file=sys.stderr)
        return {}
    records = {entry.uid: record for entry in entries if (record := read(entry)) is not None}
    return {
        uid: tuple(name for one in record.devices for name in one.cdi_device_ids) for uid, record in records.items()
    }


def _ids(loaded: LoadedFile, recorded: Sequence[str]) -> tuple[str, ...]:
    """Return the recorded ids of a claim, or those of its spec if the record is of another one."""
    spec = loaded.spec
    own = tuple(f"{spec.kind}={device.name}" for device in spec.devices) if spec is not None else ()
    return tuple(recorded) if own and set(own) <= set(recorded) else own


def _directories(agent_directory: Path) -> list[Path]:
    """Return the directories that runtimes read, and the agent's if it differs."""
    from dra_agent.cdi.registry import DEFAULT_DIRECTORIES, is_default

    return [*DEFAULT_DIRECTORIES, *([] if is_default(agent_directory) else [agent_directory])]


def _list(args: argparse.Namespace) -> int:
    from dra_agent.cdi.registry import load_file

    specs, state_dir = _specs(args)
    recorded = _recorded_ids(state_dir)
    claims = []
    for uid, path in specs.claims().items():
        loaded = load_file(path)
        ids = _ids(loaded, recorded.get(uid, ()))
        claims.append(ListedClaim(uid, _claim_of(loaded), str(path), ids, loaded.refused))
    if args.output in ID_FORMATS:
        emit_ids((name for item in claims for name in item.cdi_device_ids), args.output)
    elif args.output != "table":
        emit(claims, args.output)
    elif claims:
        rows = ((item.claim, item.uid, "\n".join(item.cdi_device_ids or item.refused)) for item in claims)
        # A spec that cannot be read has no name.
        table(
            ["claim", "uid", "CDI ids"],
            rows,
            optional=("uid", "CDI ids"),
            named=lambda row: str(row[0] or row[1]),
        )
    elif not prints_names():
        print(f"no claim of {specs.driver} has a CDI spec in {specs.path}")
    return 1 if any(item.refused for item in claims) else 0


def _show(args: argparse.Namespace) -> int:
    from dra_agent.cdi.registry import applied_edits, describe
    from dra_agent.cdi.runtime import command_lines

    registry, ids = _resolve(args, *_specs(args))
    edits = applied_edits(registry, ids)
    if args.output in ID_FORMATS:
        emit_ids(ids, args.output)
        return 0
    if args.output != "table":
        emit({"cdi_device_ids": ids, "container_edits": edits}, args.output)
        return 0
    for name in ids:
        print(name)
    print("\nA container with these devices:")
    for line in describe(edits):
        print(f"  {line}")
    print("\nStart one with:")
    for line in command_lines(ids):
        print(f"  {line}")
    return 0


def _try(args: argparse.Namespace) -> int:
    import subprocess
    import tempfile

    from dra_agent.cdi.registry import applied_edits, describe
    from dra_agent.cdi.runtime import find, make_rootfs
    from dra_agent.errors import RetryableError

    specs, state_dir = _specs(args)
    registry, ids = _resolve(args, specs, state_dir)
    edits = applied_edits(registry, ids)
    with tempfile.TemporaryDirectory(prefix="dra-agent-") as folder:
        rootfs = make_rootfs(Path(folder) / "rootfs")
        runtime, reasons = None, ["a static busybox for the container is not installed"]
        if rootfs is not None:
            with progress("looking for a container runtime that works here"):
                runtime, reasons = find(rootfs, specs.path)
        if runtime is None or rootfs is None:
            for reason in reasons:
                print(f"no container: {reason}")
            print("a runtime would do this:")
            for line in describe(edits):
                print(f"  {line}")
            return 0
        paths = [node.path for node in edits.device_nodes] + [mount.container_path for mount in edits.mounts]
        names = [variable.partition("=")[0] for variable in edits.env]
        script = 'for name in $NAMES; do env | grep "^$name="; done; test $# = 0 || ls -lnd "$@"'
        argv = ["/bin/busybox", "env", f"NAMES={' '.join(names)}", "/bin/busybox", "sh", "-c", script, "sh", *paths]
        print(f"$ {runtime.name} run {' '.join(f'--device {name}' for name in ids)}", flush=True)
        status = subprocess.run(runtime.command(ids, rootfs, argv)).returncode
    if status:
        raise RetryableError(
            f"the container ended with status {status}",
            where=runtime.name,
            hint="see its output above; `dra-agent cdi validate` checks the files",
        )
    return 0


def _resolve(args: argparse.Namespace, specs: SpecDirectory, state_dir: Path) -> tuple[Registry, list[str]]:
    """Load the directories, and return the CDI ids for the names of the command line."""
    from dra_agent.cdi.registry import load_registry
    from dra_agent.errors import PermanentError

    registry = load_registry(_directories(specs.path))
    recorded = _recorded_ids(state_dir) if any("=" not in name for name in args.name) else {}
    uids = {path: uid for uid, path in specs.claims().items()} if recorded else {}
    ids: list[str] = []
    for name_or_id in args.name:
        if "=" in name_or_id:
            ids.append(name_or_id)
            continue
        path = _spec_of(name_or_id, specs)
        loaded = next((file for file in registry.files if file.path == path), None)
        if loaded is None:
            raise PermanentError(
                f"no claim of this name or uid has a CDI spec in {specs.path}",
                where=name_or_id,
                hint="`dra-agent cdi list` shows the claims with a spec, `dra-agent claim list` the claims that wait",
            )
        if loaded.spec is None:
            raise PermanentError(f"runtimes refuse it: {loaded.refused[0]}", where=str(path), hint=_REBUILD)
        ids += _ids(loaded, recorded.get(uids.get(loaded.path, ""), ()))
    return registry, ids


def _spec_of(name_or_id: str, specs: SpecDirectory) -> Path | None:
    """Find the file of a claim by its uid, namespace and name, or name."""
    from dra_agent.cdi.registry import load_file
    from dra_agent.cli.object_names import CLAIM, parse
    from dra_agent.errors import UsageError

    named = parse(name_or_id, kinds=(CLAIM,))
    found: dict[str, Path] = {}
    for uid, path in specs.claims().items():
        if uid == named.name and named.namespace is None:
            return path
        name = _claim_of(load_file(path))
        if name is not None and _matches(named, name):
            found[name] = path
    if len(found) > 1:
        raise UsageError(
            "claims of several namespaces have this name", where=name_or_id, hint=" or ".join(sorted(found))
        )
    return next(iter(found.values()), None)


def _matches(named: ObjectName, claim: str) -> bool:
    namespace, _, name = claim.partition("/")
    return named.name == name and named.namespace in (None, namespace)


def _claim_of(loaded: LoadedFile) -> str | None:
    """NAMESPACE/NAME, as the containers of the claim see it."""
    env = dict(text.split("=", 1) for text in loaded.spec.container_edits.env) if loaded.spec else {}
    return env.get("DRA_AGENT_CLAIM")


def _validate(args: argparse.Namespace) -> int:
    from dra_agent.cdi.registry import load_registry
    from dra_agent.cdi.validate import warnings
    from dra_agent.errors import UsageError

    for directory in args.directory:
        if not directory.is_dir():
            raise UsageError("is not a directory", where=str(directory), hint="name a directory that holds CDI specs")
    directories = args.directory or _directories(_specs(args)[0].path)
    registry = load_registry(directories)
    files = [
        CheckedFile(
            str(loaded.path),
            loaded.spec.kind if loaded.spec else None,
            len(loaded.spec.devices) if loaded.spec else 0,
            loaded.refused,
            (*([loaded.caveat] if loaded.caveat else ()), *(warnings(loaded.spec) if loaded.spec else ())),
        )
        for loaded in registry.files
    ]
    if args.output == "table":
        _print_findings(files, registry.conflicts, directories)
    else:
        conflicts = [{"device": item.name, "files": [str(path) for path in item.paths]} for item in registry.conflicts]
        emit({"files": files, "conflicts": conflicts}, args.output)
    return 1 if registry.conflicts or any(file.refused for file in files) else 0


def _print_findings(files: Sequence[CheckedFile], conflicts: Sequence[Conflict], where: Sequence[Path]) -> None:
    for file in files:
        plural = "device" if file.devices == 1 else "devices"
        print(f"{file.file}: {'refused' if file.refused else f'{file.devices} {plural} of {file.kind}'}")
        for reason in file.refused:
            print(f"  {reason}")
        for warning in file.warnings:
            print(f"  warning: {warning}")
    for conflict in conflicts:
        print(f"{conflict.name}: defined twice, so runtimes drop it: {' and '.join(map(str, conflict.paths))}")
    if not files:
        print(f"no CDI spec in {', '.join(map(str, where))}")
