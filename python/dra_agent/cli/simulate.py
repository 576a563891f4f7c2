"""`dra-agent simulate`: builds a simulated host, and changes it while an agent runs on it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    profiles = actions.add_parser("profiles", help="list the machines that can be simulated")
    profiles.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="how to print it")

    build = actions.add_parser("build", help="make a directory a simulated host; mends an existing one")
    build.add_argument("profile", metavar="PROFILE", help="the machine; `simulate profiles` lists them")
    build.add_argument("root", metavar="ROOT", type=Path, help="the directory")

    for name, what in (("unplug", "pull a device out"), ("replug", "put an unplugged device back")):
        action = _on_host(actions, name, what)
        action.add_argument("device", metavar="DEVICE", help=_DEVICE)

    xid = _on_host(actions, "xid", "raise an XID on an NVIDIA GPU")
    xid.add_argument("device", metavar="DEVICE", help=_DEVICE)
    xid.add_argument(
        "number", metavar="NUMBER", type=positive_number, help="as NVIDIA's driver logs them: 48, 63, 79, ..."
    )

    hang = _on_host(actions, "hang", "make NVML calls hang, or take longer")
    _add_call(hang)
    hang.add_argument(
        "--milliseconds",
        type=positive_number,
        metavar="N",
        help="come back after that time; without, hang until `clear`",
    )

    fail = _on_host(actions, "fail", "make NVML calls fail")
    _add_call(fail)
    fail.add_argument("--code", type=positive_number, default=999, metavar="N", help="NVML's error number; default 999")

    _on_host(actions, "clear", "end hangs, delays and failures")


def run(args: argparse.Namespace) -> int:
    """Do one action and say what was done."""
    from dra_agent.simulate import build, change

    root: Path | None = getattr(args, "root", None)
    if root is None:
        return _list(args.output)
    match args.action:
        case "build":
            host = build(args.profile, root)
            print(f"{args.profile} at {root}: --sysfs-root {host.sysfs} --dev-root {host.dev}")
        case "unplug":
            print(f"unplugged {change.unplug(root, args.device)}")
        case "replug":
            print(f"plugged {change.replug(root, args.device)} in again")
        case "xid":
            print(f"raised XID {args.number} on {change.xid(root, args.device, args.number)}")
        case "hang" if args.milliseconds is None:
            change.hang(root, args.function, args.device)
            print(f"{_calls(args)} hang until `dra-agent simulate clear {root}`")
        case "hang":
            change.delay(root, args.function, args.milliseconds, args.device)
            print(f"{_calls(args)} take {args.milliseconds} ms longer")
        case "fail":
            change.fail(root, args.function, args.code, args.device)
            print(f"{_calls(args)} fail with {args.code}")
        case _:
            print(f"cleared {change.clear(root)} faults")
    return 0


_DEVICE = "PCI address, UUID or number of an NVIDIA GPU, or name of an interface or RDMA device"


def _on_host(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=what)
    action.add_argument("root", metavar="ROOT", type=Path, help="the simulated host's directory")
    return action


def _add_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", metavar="FUNCTION", nargs="?", help="such as nvmlDeviceGetMemoryInfo; without, every function"
    )
    parser.add_argument("--device", metavar="DEVICE", help="only calls about this NVIDIA GPU")


def _calls(args: argparse.Namespace) -> str:
    about = f" about {args.device}" if args.device else ""
    return f"calls of {args.function or 'every function'}{about}"


def positive_number(text: str) -> int:
    """Read a flag's count, 1 or more."""
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _list(output: str) -> int:
    from dra_agent.cli.output import emit, table
    from dra_agent.simulate import profiles
    from dra_agent.simulate.profiles import load

    rows = [(name, load(name).description) for name in profiles()]
    if output == "table":
        table(("profile", "machine"), rows)
    else:
        emit([{"profile": name, "machine": description} for name, description in rows], output)
    return 0
