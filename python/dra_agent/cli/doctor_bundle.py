"""`dra-agent doctor --bundle FILE`: everything that a report needs, in one archive without credentials."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.doctor import CheckContext
    from dra_agent.doctor.bundle import Bundle, BundleManifest, Document, Files, RecordedHost, Redactor, Text
    from dra_agent.doctor.record.identity import Replacements
    from dra_agent.host import Host

STDOUT = "-"
"""Instead of a file: for an agent in a pod, whose image has no program to copy files with."""
PART_TIMEOUT_S = 30.0
SCAN_TIMEOUT_S = 120.0
"""Timeout of parts that query drivers, which respond slowly without persistence mode."""
RECORDING_TIMEOUT_S = 700.0
"""Above the sum of the recording's own deadlines."""
MAX_RECORDING_BYTES = 48 << 20
MAX_CREDENTIALS_BYTES = 1 << 20


def run(args: argparse.Namespace) -> int:
    """Write the bundle. Missing parts are printed; they are not an error."""
    import os
    import secrets
    import socket
    import sys

    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress, write_binary
    from dra_agent.doctor.bundle import Bundle, Redactor, require_new, write_archive
    from dra_agent.doctor.record.identity import Replacements

    file = None if args.bundle == STDOUT else Path(args.bundle)
    if file is None:
        _check_stdout(args)
    else:
        require_new(file)
    shown, config_error = _shown(args)
    redactor = Redactor()
    _learn_credentials(redactor, shown)
    replacements = None
    if not args.with_identity:
        replacements = Replacements(secrets.token_bytes(32), socket.gethostname())
        replacements.learn(shown.config.host_label)
    bundle = Bundle(redactor, replacements, user=os.geteuid())
    with command_host(shown.config) as host, progress("collecting the bundle"):
        _add_agent(bundle, args, shown, config_error, host)
        _add_host(bundle, shown, host, replacements)
        _add_logs(bundle, shown)
        manifest, data = bundle.pack()
        if file is not None:
            write_archive(file, data)
    if file is None:
        write_binary(data)
        _print(manifest, "standard output", len(data), sys.stderr)
    elif args.output == "table":
        _print(manifest, str(file), len(data), sys.stdout)
    else:
        emit({"file": str(file), "size": len(data), "manifest": manifest}, args.output)
    return 0


def _check_stdout(args: argparse.Namespace) -> None:
    from dra_agent.cli.terminal import is_terminal
    from dra_agent.errors import UsageError

    if is_terminal():
        raise UsageError("writes an archive to the terminal", where="--bundle -", hint="redirect it: > support.tar.gz")
    if args.output != "table":
        raise UsageError("standard output is the archive", where="--bundle - -o", hint="name a file")


def _print(manifest: BundleManifest, target: str, size: int, stream: TextIO) -> None:
    for omission in manifest.omitted:
        where = omission.where if omission.where == omission.part else f"{omission.part}: {omission.where}"
        print(f"missing: {where}: {omission.reason}", file=stream)
    if manifest.user != 0:
        print("not run as root: files that only root can read are missing", file=stream)
    removed = "with" if manifest.identity else "without"
    print(
        f"wrote {len(manifest.files) + 1} files ({size >> 10} KiB), without credentials and {removed} the identity of "
        f"the host: {target}",
        file=stream,
    )
    print("read it before you send it: MANIFEST.json lists its files and the missing parts", file=stream)


def _shown(args: argparse.Namespace) -> tuple[ShownHost, str]:
    """Find the host; with a file that is invalid, as if there were none, and with the reason."""
    from dra_agent.agent.about import RunningAgent, query
    from dra_agent.agent.config import Config, load_config
    from dra_agent.agent.config_problems import ConfigError
    from dra_agent.cli.shown_host import ShownHost, shown_host

    try:
        shown = shown_host(args)
        return shown, "\n".join(shown.file_problems)
    except ConfigError as error:
        config = load_config(args, below=Config())
        agent = query(config)
        if not isinstance(agent, RunningAgent):
            return ShownHost(config, agent, is_agents=False), str(error)
        return ShownHost(load_config(args, below=agent.config), agent, is_agents=True), str(error)


def _learn_credentials(redactor: Redactor, shown: ShownHost) -> None:
    """Take the credentials of the agent and of this process: none of them belongs into any part."""
    import os

    import yaml

    from dra_agent import user_file, yaml_text
    from dra_agent.bearer_tokens import read_tokens
    from dra_agent.kube_client.config import SERVICE_ACCOUNT

    redactor.learn_variables(os.environ)
    for config in (shown.config, *(() if shown.agent is None else (shown.agent.config,))):
        if config.metrics_token_file is not None:
            with suppress(OSError, ValueError):
                for token in read_tokens(config.metrics_token_file):
                    redactor.learn(token.decode())
    named = [Path(entry) for entry in os.environ.get("KUBECONFIG", "").split(os.pathsep) if entry]
    for path in (shown.config.kubeconfig, *named):
        if path is not None:
            with suppress(OSError, yaml.YAMLError, ValueError, RecursionError):
                text = user_file.read(path, MAX_CREDENTIALS_BYTES).decode(errors="replace")
                redactor.learn_document(yaml_text.load(text))
    with suppress(OSError):
        redactor.learn(user_file.read(SERVICE_ACCOUNT / "token", MAX_CREDENTIALS_BYTES).decode(errors="replace"))


def _add_agent(bundle: Bundle, args: argparse.Namespace, shown: ShownHost, config_error: str, host: Host) -> None:
    def version() -> Document:
        import platform

        from dra_agent import __version__, revision
        from dra_agent.doctor.bundle import Document

        kernel = " ".join(platform.uname()[i] for i in (0, 2, 3, 4))
        system = None
        with suppress(OSError):
            system = platform.freedesktop_os_release().get("PRETTY_NAME")
        value = {
            "version": __version__,
            "revision": revision.read(),
            "interpreter": platform.python_version(),
            "kernel": kernel,
        }
        return Document("version.json", {**value, "system": system})

    def configuration() -> Document:
        from dra_agent.agent.config import load
        from dra_agent.agent.config_keys import values_of
        from dra_agent.cli.agent_config import listing
        from dra_agent.doctor.bundle import Document

        rows = [] if config_error else listing(load(args))
        running = None if shown.agent is None else values_of(shown.agent.config)
        return Document("config.json", {"problems": config_error or None, "values": rows, "running": running})

    def agent() -> Document:
        from dra_agent.agent.about import RunningAgent
        from dra_agent.doctor.bundle import Document, MissingPartError
        from dra_agent.reclaim.control import Status, send_request

        if not isinstance(shown.answer, RunningAgent):
            raise MissingPartError(f"no agent responds: {shown.answer.reason}")
        status = send_request(shown.config.state_dir, Status())
        about = {"pid": shown.answer.pid, "version": shown.answer.version, "reload": shown.answer.reload}
        return Document("agent.json", {**about, "reclaim": status})

    def metrics() -> Text:
        from dra_agent.doctor.bundle import MissingPartError, Text
        from dra_agent.reclaim.control import Exposition, send_request

        if shown.agent is None:
            raise MissingPartError(f"no agent responds in {shown.config.state_dir}")
        # Over the agent's socket: any process can listen on the port, and would get the token.
        return Text("metrics.txt", str(send_request(shown.config.state_dir, Exposition())))

    bundle.add("version", PART_TIMEOUT_S, version)
    bundle.add("config", PART_TIMEOUT_S, configuration)
    bundle.add("agent", PART_TIMEOUT_S, agent)
    bundle.add("metrics", PART_TIMEOUT_S, metrics)
    bundle.add("claims", PART_TIMEOUT_S, lambda: _claims(shown))
    bundle.add("ledger", PART_TIMEOUT_S, lambda: _ledger(shown, host))


def _claims(shown: ShownHost) -> Document:
    from dra_agent.doctor.bundle import Document, MissingPartError
    from dra_agent.presence import may_exist
    from dra_agent.standalone.protocol import SOCKET, Client, ListClasses

    socket = shown.config.state_dir / SOCKET
    if not may_exist(socket):
        raise MissingPartError(
            f"no agent in standalone mode listens in {shown.config.state_dir}; the ledger has prepared claims"
        )
    with Client(socket) as agent:
        return Document("claims.json", {"claims": [*agent.claims()], "classes": agent.call(ListClasses())})


def _ledger(shown: ShownHost, host: Host) -> Document:
    from dra_agent.doctor.bundle import Document, MissingPartError
    from dra_agent.prepare.ledger_reader import read_copy

    read = read_copy(shown.config.state_dir, host.boot_id())
    if read is None:
        raise MissingPartError(f"there is no ledger in {shown.config.state_dir}")
    entries, report = read
    return Document("ledger.json", {"problems": report.problems(), "report": report, "claims": entries})


def _add_host(bundle: Bundle, shown: ShownHost, host: Host, replacements: Replacements | None) -> None:
    contexts: list[CheckContext] = []

    def scanned() -> CheckContext:
        from dra_agent.doctor.bundle import MissingPartError

        if not contexts:
            raise MissingPartError("the scan of the host is not complete, see the part doctor")
        if contexts[0].failure is not None:
            raise MissingPartError(f"the host cannot be scanned: {contexts[0].failure}")
        return contexts[0]

    def doctor() -> Document:
        from dra_agent.cli.doctor import examination
        from dra_agent.doctor import is_healthy, run_checks
        from dra_agent.doctor.bundle import Document

        context = examination(shown, host)
        contexts.append(context)
        findings = run_checks(context)
        return Document("doctor.json", {"healthy": is_healthy(findings), "findings": findings})

    def topology() -> Document:
        from dra_agent.doctor.bundle import Document
        from dra_agent.topology import scan

        scanned()
        return Document("topology.json", scan(host, distances=True))

    def devices() -> Document:
        from dra_agent.cli.agent_view import by_device, published
        from dra_agent.cli.devices import listing
        from dra_agent.doctor.bundle import Document

        context = scanned()
        assert context.topology is not None
        inventory = published(shown, host, context.topology)
        return Document("devices.json", listing(inventory, inventory.devices, by_device(shown), shown.config))

    def slices() -> Document:
        from dra_agent.doctor.bundle import Document
        from dra_agent.slices import desired_slices

        context = scanned()
        assert context.inventory is not None
        config = shown.config
        desired = desired_slices(context.inventory, node=config.node, driver=config.driver_name, naming="fixed")
        return Document("slices.json", {"items": desired.slices, "not_published": desired.problems})

    bundle.add("doctor", SCAN_TIMEOUT_S, doctor)
    bundle.add("topology", SCAN_TIMEOUT_S, topology)
    bundle.add("devices", SCAN_TIMEOUT_S, devices)
    bundle.add("slices", PART_TIMEOUT_S, slices)
    bundle.add("cdi", PART_TIMEOUT_S, lambda: _cdi(shown))
    bundle.add("recording", RECORDING_TIMEOUT_S, lambda: _recording(shown, host, replacements))


def _cdi(shown: ShownHost) -> Files:
    """Read the directories that runtimes read; those of this machine do not belong to a simulated host."""
    from dra_agent.cdi.registry import DEFAULT_DIRECTORIES, is_default
    from dra_agent.doctor.bundle import Files, Text
    from dra_agent.doctor.bundle.directory import read_directory

    own = shown.config.cdi_dir
    folders = [own] if shown.config.simulate is not None or not is_default(own) else []
    folders += [] if shown.config.simulate is not None else DEFAULT_DIRECTORIES
    files = Files()
    for folder in folders:
        try:
            for file in read_directory(folder):
                path = folder / file.name
                if file.reason:
                    files.omitted.append((str(path), file.reason))
                else:
                    text = file.data.decode(errors="replace")
                    files.contents.append(Text(f"cdi{path.absolute()}", text, is_log=False))
        except OSError as error:
            files.omitted.append((str(folder), f"cannot be listed: {error.strerror}"))
    return files


def _recording(shown: ShownHost, host: Host, replacements: Replacements | None) -> Files:
    import tempfile

    from dra_agent.doctor.bundle import Files, MissingPartError
    from dra_agent.doctor.record import record

    with tempfile.TemporaryDirectory(prefix="dra-agent-bundle-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory) / "recording"
        manifest = record(
            host,
            folder,
            settings=shown.config.inventory,
            with_identity=replacements is None,
            replacements=replacements,
        )
        size = sum(file.size for file in manifest.files)
        if size > MAX_RECORDING_BYTES:
            raise MissingPartError(
                f"it has {size >> 20} MiB, more than {MAX_RECORDING_BYTES >> 20}; make one with doctor --record DIR"
            )
        recorded = _recorded(folder)
    return Files([recorded], [(one.where, one.reason) for one in manifest.omitted])


def _recorded(folder: Path) -> RecordedHost:
    from dra_agent.doctor.bundle import RecordedHost

    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    return RecordedHost("recording", files)


def _add_logs(bundle: Bundle, shown: ShownHost) -> None:
    def logs(name: str, read: Callable[[], str]) -> Callable[[], Text]:
        from dra_agent.doctor.bundle import Text

        return lambda: Text(name, read())

    def kernel() -> str:
        from dra_agent.doctor.bundle import MissingPartError
        from dra_agent.doctor.bundle.logs import read_kernel_log

        if shown.config.simulate is not None:
            raise MissingPartError("the kernel log of this machine is not that of a simulated host")
        return read_kernel_log()

    def journal() -> str:
        from dra_agent.doctor.bundle.logs import read_journal

        return read_journal()

    bundle.add("journal", PART_TIMEOUT_S, logs("journal.log", journal))
    bundle.add("kernel", 2 * PART_TIMEOUT_S, logs("kernel.log", kernel))
