"""The argument parser of every command: one function builds the whole tree, from which completion and pages come too.

Wrong use prints the usage of the command that was meant, and the nearest correct spelling.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from dra_agent import revision
from dra_agent.agent.distributions import CLUSTER, SIMULATE, Distribution, load

PROGRAM = "dra-agent"
COMMANDS = {
    "run": "start the agent",
    "topology": "show the PCIe and NUMA tree, or draw it",
    "devices": "show the devices of this host, and the claims that hold them",
    "top": "show what devices and claims use now, live, if telemetry is on",
    "ui": "serve a read-only page of this host, and of a cluster, to a browser",
    "slices": "show the ResourceSlices that describe this host",
    "claim": "apply, get, list, await and delete claims, and show their devices",
    "claims": "show the claims that hold devices here (`claim holders`)",
    "explain": "explain why a claim does not fit, device by device",
    "capacity": "count how many more copies of a pod or claim fit, and what limits each node",
    "config": "check and show the agent's configuration, and that in claims and classes",
    "webhook": "refuse mistaken configuration when it is applied (optional)",
    "reclaim": "start, cancel or show the reclaim of this node",
    "cdi": "show and check CDI specs",
    "doctor": "find problems of this host and how to fix them",
    "simulate": "build a simulated host and change it while an agent runs on it",
    "completion": "print the completion script of a shell",
}
OF_OTHER_DISTRIBUTIONS: dict[str, tuple[Distribution, str]] = {
    "capacity": (CLUSTER, "cli.capacity"),
    "simulate": (SIMULATE, "command"),
    "ui": (CLUSTER, "cli.ui"),
}
"""Commands that the agent's own distribution does not have: each with its distribution, and its module there."""
EPILOG = """\
exit codes: 0 done; 1 failed, or the answer is no; 2 wrong use or an invalid file; 130 interrupted.
`dra-agent COMMAND --help` shows the flags and examples of a command.
"""
_EXAMPLES = (
    ("devices", "what can be claimed on this host"),
    ("claim apply -f claim.yaml", "claim devices, without Kubernetes"),
    ("explain claim/train", "why a claim waits"),
    ("doctor", "problems of this host, and how to fix them"),
    ("run --standalone --simulate dgx-h100", "try it all without hardware"),
)
MAX_GROUP_EXAMPLES = 6
"""Examples in the help of a command that only has further commands."""
_MISSING = "the following arguments are required: "
_CHOICE = re.compile(r"(?:argument (?P<argument>.+?): )?invalid choice: '(?P<given>[^']*)'")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves descriptions as they are, and has room for the longest command."""

    def __init__(self, prog: str, **keywords: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28, **keywords})

    def add_argument(self, action: argparse.Action) -> None:
        """Make room for the names of commands, which argparse counts without their indentation."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            longest = max(map(len, action.choices), default=0) + self._current_indent + self._indent_increment
            self._action_max_length = max(self._action_max_length, longest)


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest flag or command where it refuses one."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", _HelpFormatter)
        super().__init__(*args, **keywords)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; flags that are unknown are refused by the command that they were given to."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            if not flag.startswith("-"):
                self.error(f"unexpected argument: {flag}")
            self.error(f"unknown flag: {flag}{_did_you_mean(flag, self._option_string_actions)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage, the message and the nearest choice, and exit with 2; without a command, the whole help."""
        if (found := _CHOICE.match(message)) is not None:
            choices = [str(choice) for action in self._actions for choice in action.choices or ()]
            if subcommands(self):
                # `help` and `version` are commands elsewhere.
                choices += self._option_string_actions
            message += _did_you_mean(found["given"], choices) or self._verbs_called(found["given"])
        if message.startswith(_MISSING) and subcommands(self):
            self.print_help(sys.stderr)
            self.exit(2, f"\n{self.prog}: error: {message}\n")
        super().error(message)

    def _verbs_called(self, word: str) -> str:
        """Return the commands whose last word this is, as a hint: other programs have it as the first word."""
        if self.prog != PROGRAM:
            return ""
        near = [" ".join(words) for words, _ in leaves(build_parser()) if len(words) > 1 and words[-1] == word]
        return f"; did you mean {' or '.join(f'`{command}`' for command in near)}?" if near else ""


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def build_parser(only: str | None = None) -> Parser:
    """Build the parser of every command; with `only`, the flags of that command alone, which imports one module."""
    parser = Parser(
        prog=PROGRAM,
        description="Makes the accelerators of this host claimable, with Kubernetes or without.",
        epilog=f"{examples(*_EXAMPLES)}\n{EPILOG}",
    )
    parser.add_argument("--version", action="version", version=f"dra-agent {revision.describe()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        distribution, _ = OF_OTHER_DISTRIBUTIONS.get(name, (None, ""))
        missing = distribution if distribution is not None and not distribution.is_installed else None
        mark = f" (needs {missing.name})" if missing is not None else ""
        subparser = commands.add_parser(name, help=summary + mark, description=summary[0].upper() + summary[1:] + ".")
        if only == name or (only is None and missing is None):
            command_module(name).add_arguments(subparser)
    return parser


def command_module(name: str) -> ModuleType:
    """Import the module of a command. Raises UsageError if it is of a distribution that is not installed."""
    if name in OF_OTHER_DISTRIBUTIONS:
        distribution, module = OF_OTHER_DISTRIBUTIONS[name]
        return load(distribution, module, name)
    return importlib.import_module(f"dra_agent.cli.{name}")


def examples(*lines: tuple[str, str], program: str = PROGRAM) -> str:
    """Return the epilog with these examples, each an argument list of `program` and its effect."""
    return "\n".join(["examples:", *(f"  # {effect}\n  {program} {arguments}" for arguments, effect in lines), ""])


def add_group_examples(parser: argparse.ArgumentParser) -> None:
    """Set the epilog of a command that only has further commands: the first example of each of them."""
    found = (re.search(r"^  # .*\n  .*", child.epilog or "", re.MULTILINE) for child in subcommands(parser).values())
    first = [example[0] for example in found if example is not None]
    parser.epilog = "\n".join(["examples:", *first[:MAX_GROUP_EXAMPLES], ""])


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands below a parser by name, in the order of its help; empty for one without."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def flags_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the flags of a command, short ones too."""
    return dict(parser._option_string_actions)


def leaves(parser: argparse.ArgumentParser, path: Sequence[str] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that has no further ones below it: its words and its parser."""
    below = subcommands(parser)
    if not below:
        yield tuple(path), parser
    for name, child in below.items():
        yield from leaves(child, (*path, name))
