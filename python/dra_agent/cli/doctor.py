"""`dra-agent doctor`: finds problems of this host and prints how to fix them, or records it. It changes nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.doctor import CheckContext, Finding, OtherAgent
    from dra_agent.host import Host
    from dra_agent.inventory.model import Inventory
    from dra_agent.topology import Topology

EPILOG = examples(
    ("doctor", "the problems of this host"),
    ("doctor --all", "also the checks that passed"),
    ("doctor -o json", "for programs; the exit code is 1 where something does not work"),
    ("doctor --record ./host", "a recording of this host; --simulate ./host runs an agent on it elsewhere"),
    ("doctor --bundle support.tar.gz", "everything that a report needs, without credentials, in one file"),
)


def add_arguments(parser: Parser) -> None:
    """Define the flags."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags

    parser.epilog = EPILOG
    parser.add_argument("-a", "--all", action="store_true", help="also show the checks that passed")
    writes = parser.add_exclusive_flags()
    writes.add_argument(
        "--record",
        metavar="DIR",
        help="write a recording of this host to a new directory instead, without serial numbers, UUIDs and addresses",
    )
    writes.add_argument(
        "--bundle",
        metavar="FILE",
        help="write a new tar.gz for a report instead (-: to standard output): configuration, findings, devices, "
        "claims, logs and a recording, without credentials, serial numbers, UUIDs and addresses",
    )
    parser.add_argument(
        "--with-identity",
        action="store_true",
        help="with --record or --bundle: keep serial numbers, UUIDs and addresses",
    )
    add_flags(parser, (*HOST_FLAGS, "cdi_dir"))
    add_output_flag(parser, names=False)


def run(args: argparse.Namespace) -> int:
    """Print the findings, or write a recording or a bundle. Returns 1 if a finding is a problem.

    Raises UsageError for flags that do not belong together.
    """
    if args.record is not None:
        return _record(args)
    if args.bundle is not None:
        from dra_agent.cli import doctor_bundle

        return doctor_bundle.run(args)
    if args.with_identity:
        from dra_agent.errors import UsageError

        raise UsageError(
            "needs --record or --bundle", where="--with-identity", hint="add --record DIR or --bundle FILE"
        )
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.output import emit
    from dra_agent.cli.shown_host import shown_host
    from dra_agent.cli.terminal import progress
    from dra_agent.doctor import is_healthy, run_checks

    shown = shown_host(args)
    with command_host(shown.config) as host, progress("examining the host"):
        findings = run_checks(examination(shown, host))
    shown.announce(args.output)
    healthy = is_healthy(findings)
    if args.output == "table":
        _print(findings, show_all=args.all)
    else:
        emit({"healthy": healthy, "findings": findings}, args.output)
    return 0 if healthy else 1


def _record(args: argparse.Namespace) -> int:
    """Record the host. Missing parts are printed; they are not an error."""
    import socket
    from pathlib import Path

    from dra_agent.agent.config import load_config
    from dra_agent.agent.setup_registry import command_host
    from dra_agent.cli.output import emit
    from dra_agent.cli.terminal import progress
    from dra_agent.doctor.record import record

    config = load_config(args)
    with command_host(config) as host, progress("recording the host"):
        manifest = record(
            host,
            Path(args.record),
            settings=config.inventory,
            with_identity=args.with_identity,
            hostname=socket.gethostname(),
        )
    if args.output != "table":
        emit(manifest, args.output)
        return 0
    for omission in manifest.omitted:
        print(f"not recorded: {omission.where}: {omission.reason}")
    size = sum(file.size for file in manifest.files)
    removed = "with its identity" if args.with_identity else "without its identity"
    print(f"recorded {_count(len(manifest.files), 'file')} ({size >> 10} KiB) {removed}: {args.record}")
    print(f"run the agent on it: dra-agent devices --simulate {args.record}")
    return 0


def examination(shown: ShownHost, host: Host) -> CheckContext:
    """Scan the host; a scan that fails is a finding, and the other checks run."""
    config = shown.config
    from dra_agent.agent.about import UnreachableAgent
    from dra_agent.agent.config import is_loopback
    from dra_agent.cli.agent_view import collected
    from dra_agent.doctor import CheckContext, EndpointFiles
    from dra_agent.errors import AgentError
    from dra_agent.standalone.protocol import SOCKET
    from dra_agent.standalone.store_file import FILE
    from dra_agent.topology import scan

    examination = CheckContext(
        host=host,
        driver=config.driver_name,
        cdi_dir=config.cdi_dir,
        state_dir=config.state_dir,
        socket_name=SOCKET,
        store_name=FILE,
        kubelet_dir=config.kubelet_dir,
        simulated=config.simulate is not None,
        kubeconfig=None if config.standalone else config.kubeconfig,
        unnamed_node="" if config.node_problem is None else config.node_problem.message,
        file_problems=shown.file_problems,
    )
    if config.metrics_address:
        examination.endpoint = EndpointFiles(
            config.metrics_tls_cert,
            config.metrics_tls_key,
            config.metrics_token_file,
            is_loopback(config.metrics_address),
        )
    if isinstance(shown.answer, UnreachableAgent):
        examination.unreachable = shown.answer.reason
    if shown.is_agents and shown.agent is not None:
        examination.telemetry_interval_s = shown.agent.config.telemetry.interval
        _add_notice_sources(examination)
        if (status := shown.agent.reload) is not None:
            examination.reload_problems, examination.restart_keys = status.problems, status.restart
    try:
        examination.topology = scan(host)
        inventory = examination.inventory = collected(shown, host, examination.topology)
        examination.other_agents = tuple(_other_agents(shown, host, examination.topology, inventory))
    except AgentError as error:
        examination.failure = str(error)
    return examination


def _add_notice_sources(examination: CheckContext) -> None:
    """Ask the agent for the sources of reclaim notices."""
    from dra_agent.errors import AgentError
    from dra_agent.reclaim.control import Status, send_request
    from dra_agent.reclaim.status import source_note

    try:
        sources = send_request(examination.state_dir, Status())["sources"]
    except AgentError as error:
        examination.notices_missing, examination.sees_no_notice = f"the sources of notices are not known: {error}", True
        return
    examination.notice_sources = len(sources)
    if (note := source_note(sources)) is not None:
        examination.notices_missing, examination.sees_no_notice = note.message, note.is_blind


def _other_agents(shown: ShownHost, host: Host, topology: Topology, own: Inventory) -> Iterator[OtherAgent]:
    """Query the host's other agents for the same devices that they manage."""
    from pathlib import Path

    import msgspec

    from dra_agent.agent.about import RunningAgent, query
    from dra_agent.agent.host_ownership import other_agents
    from dra_agent.doctor import OtherAgent
    from dra_agent.errors import AgentError
    from dra_agent.inventory.collector import collect

    for other in other_agents(shown.config):
        if not other.is_running:
            continue
        agent = query(msgspec.structs.replace(shown.config, state_dir=Path(other.state_dir)))
        names: tuple[str, ...] | None = None
        if isinstance(agent, RunningAgent):
            try:
                other_inventory = collect(host, topology, agent.config.inventory, driver=agent.config.driver_name)
            except AgentError:
                pass
            else:
                addresses = {device.pci_address for device in other_inventory.devices}
                names = tuple(device.name for device in own.devices if device.pci_address in addresses)
        yield OtherAgent(other.driver, Path(other.state_dir), other.pid, names)


def _print(findings: list[Finding], *, show_all: bool) -> None:
    from dra_agent.cli.table import table
    from dra_agent.doctor import Severity

    order = [Severity.PROBLEM, Severity.WARNING, Severity.OK]
    shown = [finding for finding in findings if show_all or finding.severity is not Severity.OK]
    shown.sort(key=lambda finding: order.index(finding.severity))
    if shown:
        rows = ([f.severity.value, f.check, f.where, f.message, f.hint] for f in shown)
        table(["", "check", "where", "message", "fix"], rows, prose=("where", "message", "fix"))
        print()
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in order}
    print(
        f"{_count(counts[Severity.PROBLEM], 'problem')}, {_count(counts[Severity.WARNING], 'warning')}, "
        f"{counts[Severity.OK]} checks passed"
    )


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
