"""`dra-agent simulate`: builds a simulated host, and changes it while an agent runs on it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Literal

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, add_group_examples, examples

MAX_NUMBER = (1 << 31) - 1
"""Numbers of NVML and of the kernel have 32 bits."""
_EXAMPLES = {
    "profiles": (("-o wide", "with the source of each description"),),
    "build": (
        ("dgx-h100 ./host", "a DGX H100 below ./host"),
        ("dgx-h100-untidy ./host", "the same with a bond, a GPU on another driver, a port without a cable, ..."),
    ),
    "unplug": (("./host 0000:1b:00.0", "unplug a GPU while an agent runs on the host"),),
    "replug": (("./host 0000:1b:00.0", "plug it in again"),),
    "xid": (("./host 0 79", "the first NVIDIA GPU fell off the bus"),),
    "recovery": (("./host 0 reset", "the driver requests a reset of the first GPU"),),
    "fabric": (("./host 0 in-progress", "the first GPU is not registered with its fabric yet"),),
    "reset": (("./host 0", "reset the first GPU"),),
    "process": (
        ("./host 4711 --device 0 --memory 2048", "process 4711 uses 2 GiB of the first GPU"),
        ("./host 4711", "the process ends"),
    ),
    "load": (
        ("./host 0 training.csv", "the first NVIDIA GPU has the load of the file"),
        ("./host 0", "and no longer"),
    ),
    "hang": (("./host nvmlDeviceGetMemoryInfo --device 0", "calls of this function for one GPU hang"),),
    "latency": (("./host --init 500 --call nvmlDeviceGetName=100", "a slow library"),),
    "fail": (("./host nvmlDeviceGetUUID --code 15 --times 3", "three calls fail with GPU is lost"),),
    "kernel": (("./host 0000:1b:00.0 driver_override --errno 16", "writes to the attribute fail with EBUSY"),),
    "kill": (("./host nvmlDeviceCreateGpuInstance --after", "end the process after the call has had its effect"),),
    "clear": (("./host", "end every hang, delay, failure and kill"),),
}
"""Arguments and effect, by action."""


def _examples(action: str) -> str:
    return examples(*((f"simulate {action} {arguments}", effect) for arguments, effect in _EXAMPLES[action]))


def add_arguments(parser: Parser) -> None:
    """Add the actions."""
    parser.add_commands(dest="action", metavar="ACTION")
    profiles = parser.add_command("profiles", "list the machines that can be simulated", epilog=_examples("profiles"))
    add_output_flag(profiles)

    build = parser.add_command(
        "build", "make a directory a simulated host; repairs an existing one", epilog=_examples("build")
    )
    build.add_argument(
        "profile",
        metavar="PROFILE",
        help="the machine: `simulate profiles` lists them, and NAME-untidy is one as people run it; or the directory of"
        " a recording",
    )
    build.add_argument("root", metavar="ROOT", type=Path, help="the directory")

    for name, summary in (("unplug", "unplug a device"), ("replug", "plug an unplugged device in again")):
        action = _add_action(parser, name, summary)
        action.add_argument("device", metavar="TARGET", help=_DEVICE)

    xid = _add_action(parser, "xid", "raise an XID on an NVIDIA GPU")
    xid.add_argument("device", metavar="TARGET", help=_DEVICE)
    xid.add_argument(
        "number", metavar="NUMBER", type=positive_number, help="as NVIDIA's driver logs them: 48, 63, 79, ..."
    )
    _add_instance(xid)

    recovery = _add_action(parser, "recovery", "let NVIDIA's driver request a recovery of a GPU")
    recovery.add_argument("device", metavar="TARGET", help=_DEVICE)
    recovery.add_argument(
        "recovery_action", choices=_RECOVERY_ACTIONS, metavar="ACTION", help=", ".join(_RECOVERY_ACTIONS)
    )

    fabric = _add_action(parser, "fabric", "set the registration of an NVIDIA GPU with its NVLink fabric")
    fabric.add_argument("device", metavar="TARGET", help=_DEVICE)
    fabric.add_argument("state", choices=("not-started", "in-progress", "completed"), help="its state")
    fabric.add_argument("--status", type=positive_number, default=0, metavar="N", help="NVML's error number")
    fabric.add_argument(
        "--failure",
        action="append",
        default=[],
        choices=_FABRIC_FAILURES,
        metavar="NAME",
        help=f"an entry of the health mask; may be repeated: {', '.join(_FABRIC_FAILURES)}",
    )

    reset = _add_action(
        parser, "reset", "reset an NVIDIA GPU: MIG instances are removed, a pending MIG mode takes effect"
    )
    reset.add_argument("device", metavar="TARGET", help=_DEVICE)

    process = _add_action(parser, "process", "let a process compute on an NVIDIA GPU, or end it")
    process.add_argument("pid", metavar="PID", type=positive_number, help="its PID; no such process is started")
    process.add_argument("--device", metavar="TARGET", help="the GPU that it uses; without it, the process ends")
    process.add_argument("--memory", metavar="MIB", type=positive_number, default=1024, help="its GPU memory; 1024")
    process.add_argument("--cgroup", metavar="PATH", help="its cgroup, to which memory limits apply")
    process.add_argument(
        "--utilization",
        metavar="GPU,MEMORY",
        type=_percents,
        default=(0, 0),
        help="the part of the time in which it computes and accesses memory, in percent: 40,10; default 0,0",
    )
    process.add_argument(
        "--proc-cgroup", metavar="CGROUP", help="list it in the simulated /proc, in this cgroup: kubepods.slice/..."
    )
    _add_instance(process)

    load = _add_action(parser, "load", "let an NVIDIA GPU play the load of a file by time, or end it")
    load.add_argument("device", metavar="TARGET", help=_DEVICE)
    load.add_argument(
        "schedule",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="CSV: seconds,gpu_percent,memory_percent,memory_mib,power_watts; without it, the load ends",
    )
    _add_instance(load)

    hang = _add_action(parser, "hang", "make NVML calls hang, or take longer")
    _add_call(hang)
    hang.add_argument(
        "--milliseconds",
        type=positive_number,
        metavar="N",
        help="return after that time; without it, hang until `clear`",
    )

    latency = _add_action(parser, "latency", "set the duration of NVML calls; 0 without flags")
    latency.add_argument("--init", type=positive_number, default=0, metavar="MS", help="nvmlInit, for each GPU")
    latency.add_argument(
        "--gpu-start",
        type=positive_number,
        default=0,
        metavar="MS",
        help="the initialization of each GPU in each process; switches persistence mode off",
    )
    latency.add_argument(
        "--call", action="append", default=[], type=_call_time, metavar="FUNCTION=MS", help="a function; repeatable"
    )

    fail = _add_action(parser, "fail", "make NVML calls fail")
    _add_call(fail)
    fail.add_argument("--code", type=positive_number, default=999, metavar="N", help="NVML's error number; default 999")
    fail.add_argument("--milliseconds", type=positive_number, default=0, metavar="N", help="fail after that time")
    fail.add_argument("--times", type=positive_number, metavar="N", help="number of calls that fail; all without it")
    _add_after(fail)

    kernel = _add_action(parser, "kernel", "make writes to an attribute of a device hang, take longer or fail")
    kernel.add_argument("device", metavar="TARGET", help=_DEVICE)
    kernel.add_argument("attribute", metavar="ATTRIBUTE", help="driver_override, unbind, drivers_probe, ...")
    kernel.add_argument("--errno", type=positive_number, metavar="N", help="fail with this error number (16 is EBUSY)")
    kernel.add_argument(
        "--milliseconds",
        type=positive_number,
        default=0,
        metavar="N",
        help="return after that time; without it and --errno, hang until `clear`",
    )

    kill = _add_action(parser, "kill", "end the process that makes an NVML call, as kill -9 does")
    _add_call(kill)
    kill.add_argument(
        "--agent", action="store_true", help="and its parent: the agent, which runs the library in a child process"
    )
    kill.add_argument("--times", type=positive_number, default=1, metavar="N", help="number of calls; default 1")
    _add_after(kill)

    _add_action(parser, "clear", "end hangs, delays, failures and kills")
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Apply one action and print the result."""
    from dra_simulate import build, inject, processes

    root: Path | None = getattr(args, "root", None)
    if root is None:
        return _list(args.output)
    match args.action:
        case "build":
            host = build(args.profile, root)
            print(f"{args.profile} at {root}: --sysfs-root {host.sysfs} --dev-root {host.dev}")
        case "unplug":
            print(f"unplugged {inject.unplug(root, args.device)}")
        case "replug":
            print(f"plugged {inject.replug(root, args.device)} in again")
        case "xid":
            gpu, compute = args.instance
            uuid = inject.xid(root, args.device, args.number, gpu_instance=gpu, compute_instance=compute)
            print(f"raised XID {args.number} on {uuid}")
        case "recovery":
            uuid = inject.recovery(root, args.device, inject.RECOVERY_ACTIONS[args.recovery_action])
            print(f"the recovery of {uuid} that the driver requests is {args.recovery_action}")
        case "fabric":
            uuid = inject.fabric(root, args.device, args.state, status=args.status, failures=args.failure)
            print(f"the fabric registration of {uuid} is {args.state}")
        case "reset":
            print(f"reset {inject.reset(root, args.device)}")
        case "process" if args.device is None:
            processes.end(root, args.pid)
            print(f"process {args.pid} ended on {inject.end_process(root, args.pid)} GPUs")
        case "process":
            gpu, compute = args.instance
            uuid = inject.start_process(
                root,
                args.device,
                args.pid,
                args.memory << 20,
                gpu_instance=gpu,
                compute_instance=compute,
                cgroup=args.cgroup,
                utilization=args.utilization,
            )
            if args.proc_cgroup is not None:
                processes.run(root, args.pid, args.proc_cgroup.strip("/"))
            print(f"process {args.pid} computes on {uuid}")
        case "load":
            from dra_simulate.schedule import read_schedule

            steps = () if args.schedule is None else read_schedule(args.schedule)
            uuid = inject.play(root, args.device, steps, gpu_instance=args.instance[0])
            print(f"{uuid} plays {len(steps)} steps" if steps else f"{uuid} plays no load")
        case "hang" if args.milliseconds is None:
            inject.hang(root, args.function, args.device)
            print(f"{_calls(args)} hang until `dra-agent simulate clear {root}`")
        case "hang":
            inject.delay(root, args.function, args.milliseconds, args.device)
            print(f"{_calls(args)} take {args.milliseconds} ms longer")
        case "latency":
            inject.latency(root, init_ms_per_gpu=args.init, gpu_start_ms=args.gpu_start, calls_ms=dict(args.call))
            print(f"NVML takes {args.init} ms and {args.gpu_start} ms for each GPU to start")
        case "fail":
            inject.fail(
                root,
                args.function,
                args.code,
                args.device,
                milliseconds=args.milliseconds,
                times=args.times,
                when=args.when,
            )
            print(f"{_calls(args)} fail with {args.code}")
        case "kernel":
            address = inject.answer_write(
                root, args.device, args.attribute, errno=args.errno, milliseconds=args.milliseconds
            )
            print(f"writes to {args.attribute} of {address} hang, are delayed or fail until `clear`")
        case "kill":
            process: Literal["library", "agent"] = "agent" if args.agent else "library"
            inject.kill(root, args.function, args.device, process=process, times=args.times, when=args.when)
            print(f"{_calls(args)} end {'the agent' if args.agent else 'the process'}")
        case _:
            print(f"cleared {inject.clear(root)} faults")
    return 0


_RECOVERY_ACTIONS = (
    "none",
    "reset",
    "reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex",
    "bus-reset",
    "system-reboot",
)
"""Keys of `inject.RECOVERY_ACTIONS`, which is imported late."""
_FABRIC_FAILURES = (
    "bandwidth",
    "route-recovery",
    "route-unhealthy",
    "access-timeout",
    "system-guid",
    "chassis",
    "no-partition",
    "nvlinks",
    "firmware",
    "location",
    "gpu-state",
    "global-manager",
)
"""Keys of `inject.FABRIC_FAILURES`, which is imported late."""
_NO_INSTANCE = 0xFFFF_FFFF
"""NVML's number in place of an instance's: the whole GPU."""
_DEVICE = "PCI address, UUID or number of an NVIDIA GPU, or name of an interface or RDMA device"


def _add_action(parser: Parser, name: str, summary: str) -> Parser:
    action = parser.add_command(name, summary, epilog=_examples(name))
    action.add_argument("root", metavar="ROOT", type=Path, help="the simulated host's directory")
    return action


def _add_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", metavar="FUNCTION", nargs="?", help="such as nvmlDeviceGetMemoryInfo; without it, every function"
    )
    parser.add_argument("--device", metavar="TARGET", help="only calls about this NVIDIA GPU")


def _add_after(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--after",
        dest="when",
        action="store_const",
        const="after",
        default="before",
        help="after the effect of the call instead of before it",
    )


def _add_instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--instance",
        metavar="GI[/CI]",
        type=_instance,
        default=(_NO_INSTANCE, _NO_INSTANCE),
        help="a MIG instance of the GPU, by its number, and its compute instance",
    )


def _instance(text: str) -> tuple[int, int]:
    gpu, slash, compute = text.partition("/")
    if not (_is_number(gpu) and (not slash or _is_number(compute))):
        raise argparse.ArgumentTypeError(f"{text} is not a number, or two with a slash, such as 9/0")
    return int(gpu), int(compute) if slash else _NO_INSTANCE


def _percents(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(_is_number(part) and int(part) <= 100 for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is not two numbers from 0 to 100, such as 40,10")
    return int(parts[0]), int(parts[1])


def _call_time(text: str) -> tuple[str, int]:
    function, _, milliseconds = text.partition("=")
    if not function or not milliseconds:
        raise argparse.ArgumentTypeError(f"{text} is not FUNCTION=MS, such as nvmlDeviceGetName=100")
    return function, positive_number(milliseconds)


def _calls(args: argparse.Namespace) -> str:
    about = f" about {args.device}" if args.device else ""
    return f"calls of {args.function or 'every function'}{about}"


def positive_number(text: str) -> int:
    """Read a flag's count, 1 or more."""
    if not _is_number(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to {MAX_NUMBER}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER)) and int(text) <= MAX_NUMBER


def _list(output: str) -> int:
    from dra_agent.cli.output import emit
    from dra_agent.cli.table import table
    from dra_simulate import profiles
    from dra_simulate.profiles import SUFFIX, load_profile

    machines = [load_profile(name) for name in profiles()]
    columns = ("profile", "machine", "source")
    rows = [(machine.name, machine.description, machine.source) for machine in machines]
    if output == "table":
        table(columns, rows, optional=("source",), prose=("machine",))
        # Not among the rows, which scripts read.
        print(f"each has a sibling as people run it: {machines[0].name}{SUFFIX}, ...", file=sys.stderr)
    else:
        emit([{**dict(zip(columns, row, strict=True)), "untidy": f"{row[0]}{SUFFIX}"} for row in rows], output)
    return 0
