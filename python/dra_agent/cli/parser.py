"""The argument parser of every command: one function builds the whole tree, from which completion and pages come too.

Wrong use prints the usage of the command that was meant, and the nearest correct spelling.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Leaves descriptions as they are, and has room for long flags."""

    def __init__(self, prog: str, **keywords: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28, **keywords})


class FlagGroup:
    """Flags of a parser that belong together."""

    def __init__(self, parser: Parser, add: Callable[..., argparse.Action]) -> None:
        self._parser = parser
        self._add = add

    def add_argument(self, *names: str, **keywords: Any) -> None:
        """Define a flag as `ArgumentParser.add_argument` does."""
        self._parser.arguments.append(self._add(*names, **keywords))


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest flag or command where it refuses one.

    argparse does not list what was defined, so `arguments` and `commands` do: pages, completion and messages use them.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.arguments: list[argparse.Action] = []
        """Flags and positional arguments in the order of their definition."""
        self.commands: dict[str, Parser] = {}
        """The commands below this one, in the order of the help."""
        self.summaries: dict[str, str] = {}
        """A line about each of `commands`."""
        self._add_parser: Callable[..., Parser] | None = None
        keywords.setdefault("formatter_class", _HelpFormatter)
        super().__init__(*args, **keywords)

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Every spelling of a flag, short ones too."""
        return {spelling: action for action in self.arguments for spelling in action.option_strings}

    def add_argument(self, *names: Any, **keywords: Any) -> argparse.Action:
        """Define an argument as argparse does."""
        action = super().add_argument(*names, **keywords)
        self.arguments.append(action)
        return action

    def add_flag_group(self, title: str, description: str | None = None) -> FlagGroup:
        """Return a group of flags with its own title in the help."""
        return FlagGroup(self, self.add_argument_group(title, description).add_argument)

    def add_exclusive_flags(self) -> FlagGroup:
        """Return a group of flags of which a command line can have one."""
        return FlagGroup(self, self.add_mutually_exclusive_group().add_argument)

    def add_commands(self, dest: str, metavar: str, *, required: bool = True) -> None:
        """Let commands follow, the chosen one in `dest`; `add_command` defines them."""
        self._add_parser = self.add_subparsers(dest=dest, metavar=metavar, required=required).add_parser

    def add_command(self, name: str, summary: str, **keywords: Any) -> Parser:
        """Define a command below this one, after `add_commands`."""
        if self._add_parser is None:
            raise TypeError(f"{self.prog} takes no commands")
        command = self._add_parser(name, help=summary, **keywords)
        self.commands[name] = command
        self.summaries[name] = summary
        return command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; flags that are unknown are refused by the command that they were given to."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            if not flag.startswith("-"):
                self.error(f"unexpected argument: {flag}")
            self.error(f"unknown flag: {flag}{_did_you_mean(flag, self.flags)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage, the message and the nearest choice, and exit with 2; without a command, the whole help."""
        if (found := _CHOICE.match(message)) is not None:
            choices = [str(choice) for action in self.arguments for choice in action.choices or ()]
            if self.commands:
                # `help` and `version` are commands elsewhere.
                choices += [*self.commands, *self.flags]
            message += _did_you_mean(found["given"], choices) or self._verbs_called(found["given"])
        if message.startswith(_MISSING) and self.commands:
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
    parser.add_argument("-V", "--version", action="version", version=f"dra-agent {revision.describe()}")
    parser.add_commands(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        distribution, _ = OF_OTHER_DISTRIBUTIONS.get(name, (None, ""))
        missing = distribution if distribution is not None and not distribution.is_installed else None
        mark = f" (needs {missing.name})" if missing is not None else ""
        command = parser.add_command(name, summary + mark, description=summary[0].upper() + summary[1:] + ".")
        if only == name or (only is None and missing is None):
            command_module(name).add_arguments(command)
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


def add_group_examples(parser: Parser) -> None:
    """Set the epilog of a command that only has further commands: the first example of each of them."""
    found = (re.search(r"^  # .*\n  .*", child.epilog or "", re.MULTILINE) for child in parser.commands.values())
    first = [example[0] for example in found if example is not None]
    parser.epilog = "\n".join(["examples:", *first[:MAX_GROUP_EXAMPLES], ""])


def leaves(parser: Parser, path: Sequence[str] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yield every command that has no further ones below it: its words and its parser."""
    if not parser.commands:
        yield tuple(path), parser
    for name, child in parser.commands.items():
        yield from leaves(child, (*path, name))
