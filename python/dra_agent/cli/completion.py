"""`dra-agent completion bash|zsh|fish`: scripts that complete commands, flags, and names of claims and devices.

A script starts the program again for the candidates, with variables that argcomplete defines: it fits every version.
The metavar of an argument is the kind of its value.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import argcomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from dra_agent.cli.parser import COMMANDS, PROGRAM, Parser, add_group_examples, build_parser, examples
from dra_agent.printable import printable

TIMEOUT_S = 1.0
"""Timeout of a request for names to the agent: the shell waits for the response."""
_DIRECTORY_KINDS = frozenset({"DIR", "ROOT"})
_FILE_KINDS = frozenset({"FILE", "-- COMMAND"})
_EXAMPLES = {
    "bash": ("bash > /etc/bash_completion.d/dra-agent", "for every user of bash"),
    "zsh": ("zsh > /usr/local/share/zsh/site-functions/_dra-agent", "for every user of zsh"),
    "fish": ("fish > ~/.config/fish/completions/dra-agent.fish", "for one user of fish"),
}

Candidates = Mapping[str, str]
"""Words and their descriptions."""


def add_arguments(parser: Parser) -> None:
    """Define a verb for each shell."""
    parser.add_commands(dest="shell", metavar="SHELL")
    for shell, (arguments, effect) in _EXAMPLES.items():
        parser.add_command(
            shell,
            f"the script for {shell}",
            description=f"Print the script for {shell}.",
            epilog=examples((f"completion {arguments}", effect)),
        )
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Print a script."""
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the script of a shell, which can also be installed as a file."""
    return shellcode([PROGRAM], use_defaults=False, shell=shell)


def answer() -> None:
    """Print the candidates for the command line in the variables of the script, and end the process."""
    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    # zsh sends the whole line, for example with `sudo` and with commands before it.
    program = max((index for index, word in enumerate(words) if Path(word).name == PROGRAM), default=0)
    os.environ["_ARGCOMPLETE"] = str(program + 1)
    command = next((word for word in words[program + 1 :] if not word.startswith("-")), "")
    parser = build_parser(command if command in COMMANDS else "")
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=ValueCompleter())


class ValueCompleter(BaseCompleter):
    """Completes values of arguments by their metavar, with names of claims and devices of the agent of this host."""

    def __call__(
        self, *, prefix: str, action: argparse.Action, parser: argparse.ArgumentParser, parsed_args: argparse.Namespace
    ) -> Candidates:
        """Return the values that `action` can have.

        The shell prints them as they are: those that would control the terminal are left out, as an escaped name would
        be another one.
        """
        found = self._values(prefix, action, parsed_args)
        return {word: printable(text, line=True) for word, text in found.items() if word == printable(word, line=True)}

    def _values(self, prefix: str, action: argparse.Action, args: argparse.Namespace) -> Candidates:
        kind = action.metavar if isinstance(action.metavar, str) else ""
        if kind in _FILE_KINDS:
            return self.files(prefix)
        if kind in _DIRECTORY_KINDS:
            return self.directories(prefix)
        if kind == "PROFILE" or kind.startswith("PROFILE|"):
            from dra_agent.agent.distributions import SIMULATE, simulation

            profiles = simulation().profiles() if SIMULATE.is_installed else ()
            return {**dict.fromkeys(profiles, ""), **(self.directories(prefix) if kind != "PROFILE" else {})}
        if "|" in kind:
            return dict.fromkeys(kind.split("|"), "")
        return self.names(kind, args)

    def files(self, prefix: str) -> Candidates:
        """Return paths of files and directories."""
        return dict.fromkeys(FilesCompleter()(prefix), "")

    def directories(self, prefix: str) -> Candidates:
        """Return paths of directories."""
        return dict.fromkeys(DirectoriesCompleter()(prefix), "")

    def names(self, kind: str, args: argparse.Namespace) -> Candidates:
        """Return the names of objects of a kind."""
        readers = {"CLAIM": _claims, "OBJECT": _claims, "NAMESPACE": _namespaces, "DEVICE": _devices}
        reader = readers.get(kind)
        return {} if reader is None else reader(_state_dir(args))


def _claims(state_dir: Path) -> Candidates:
    return {
        view["name"] if view["namespace"] == "default" else f"{view['namespace']}/{view['name']}": view["phase"]
        for view in _views(state_dir)
    }


def _namespaces(state_dir: Path) -> Candidates:
    return {view["namespace"]: "" for view in _views(state_dir)}


def _views(state_dir: Path) -> Sequence[Mapping[str, str]]:
    """Return the claims of the running agent, or of the ledger of a cluster node; empty where none can be read."""
    from dra_agent.errors import AgentError
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client

    try:
        if exists(state_dir / SOCKET):
            with Client(state_dir / SOCKET) as agent:
                return [*agent.claims(whole=False, timeout_s=TIMEOUT_S)]
        entries, _ = read_copy(state_dir) or ([], None)
    except AgentError:
        return []
    return [{"namespace": entry.namespace, "name": entry.name, "phase": entry.state} for entry in entries]


def _devices(state_dir: Path) -> Candidates:
    """Return the devices that the running agent publishes; a scan of the host would take too long."""
    from dra_agent.errors import AgentError
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client, State

    if not exists(state_dir / SOCKET):
        return {}
    try:
        with Client(state_dir / SOCKET) as agent:
            state = agent.call(State(), timeout_s=TIMEOUT_S)
    except AgentError:
        return {}
    return {
        device["name"]: str(device.get("attributes", {}).get("productName", {}).get("string", ""))
        for entry in state["slices"]
        for device in entry["spec"].get("devices") or ()
    }


def _state_dir(args: argparse.Namespace) -> Path:
    from dra_agent.agent.config import load_config

    return load_config(args).state_dir
