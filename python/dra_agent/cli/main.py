"""Entry point of the command `dra-agent`: finds the subcommand, and turns errors into one message and an exit code.

A subcommand is a module with `add_arguments(parser)` and `run(args)`, of this package or of another distribution; only
the requested one is imported, so that `dra-agent --help` costs nothing.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from dra_agent.cli.parser import build_parser, command_module
from dra_agent.cli.terminal import guarded
from dra_agent.errors import AgentError

SERVICE = "run"
DEBUG = "DRA_AGENT_DEBUG"
COMPLETION = "_ARGCOMPLETE"
"""Set by the scripts of `dra-agent completion`, which want candidates and not a command."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error numbers of a write to a full disk."""
SHORTAGES = {
    errno.EAGAIN: "no room for another thread or process: raise the limit of tasks (pids.max, TasksMax=, ulimit -u)",
    errno.EMFILE: "no free file descriptor in this process: raise the limit of open files (LimitNOFILE=, ulimit -n)",
    errno.ENFILE: "no free file descriptor on this host: raise fs.file-max",
    errno.ENOMEM: "no memory for this process: raise its limit of memory",
}
"""What the system lacks, by the error number, and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit code: 0 done, 1 the answer is no, 2 wrong use.

    Without `argv` it is the command of this process, which ends after it.
    """
    with guarded():
        code = exit_code(lambda: _run(list(sys.argv[1:] if argv is None else argv)))
    if argv is None:
        _drop_unread_messages()
        # The interpreter searches all objects for cycles when it ends, which takes a fifth of a short command's time.
        gc.freeze()
    return code


def exit_code(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; errors become one message on standard error."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse has printed the reason; 2 for wrong use, 0 for --help and --version
        return stop.code if isinstance(stop.code, int) else 2
    except AgentError as error:
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (`dra-agent devices | head`); Python must not report that at exit.
        _discard(sys.stdout)
        return 0
    except MemoryError:
        _print_error(SHORTAGES[errno.ENOMEM])
        return 1
    except OSError as error:
        if error.errno in SHORTAGES:
            _print_error(SHORTAGES[error.errno])
            return 1
        if error.errno not in FULL or error.filename is not None:
            return _internal(error)
        # Python would write the rest of the buffer again at exit, and print its own message.
        _discard(sys.stdout)
        _print_error(f"standard output: cannot be written: {error.strerror}; the output is not complete")
        return 1
    except Exception as error:  # noqa: BLE001 - a user gets one line for every error
        return _internal(error)


def _internal(error: Exception) -> int:
    """Report a defect; raises it again if DRA_AGENT_DEBUG is set."""
    if os.environ.get(DEBUG):
        raise error
    _print_error(
        f"internal error: {type(error).__name__}: {error}; set {DEBUG}=1 for a traceback, and please report it"
    )
    return 1


def _run(arguments: list[str]) -> int:
    if COMPLETION in os.environ:
        from dra_agent.cli import completion

        completion.answer()
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    if chosen == SERVICE:
        # Before slow imports: the first process of a container cannot be stopped until it handles signals.
        from dra_agent.agent import first_process, signals

        first_process.run_in_child()
        signals.install()
    args = build_parser(chosen or "").parse_args(arguments)
    code: int = command_module(args.command).run(args)
    return code


def _print_error(message: str) -> None:
    with suppress(OSError):  # nobody reads them
        for line in message.split("\n"):
            print(f"dra-agent: {line}", file=sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drop what is in the buffer of a stream, and what is written to it from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _drop_unread_messages() -> None:
    """Keep the exit code where nobody reads standard error: Python exits with 120 if the buffer stays full."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
