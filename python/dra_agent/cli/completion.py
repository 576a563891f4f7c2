"""`dra-agent completion bash|zsh|fish`: scripts that complete commands, flags, and names of claims and devices.

A script calls the program for candidates, so it fits every version: `dra-agent completion words -- WORD...` prints
them for the last word, each with a description. The metavar of an argument is the kind of its value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dra_agent.cli.parser import COMMANDS, Parser, add_group_examples, build_parser, examples, subcommands

TIMEOUT_S = 1.0
"""Timeout of a request for names to the agent: the shell waits for the response."""
FILES, DIRECTORIES = ":files", ":directories"
"""Printed in place of candidates: the shell completes paths itself."""
_FILE_KINDS = {"FILE": FILES, "DIR": DIRECTORIES, "ROOT": DIRECTORIES, "-- COMMAND": FILES}

BASH = """\
# bash completion of PROGRAM: source <(PROGRAM completion bash)
_NAME_complete() {
    local line word words=()
    COMPREPLY=()
    # Bash splits --flag=value into three words.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do [[ $word == "=" ]] || words+=("$word"); done
    while IFS= read -r line; do
        case $line in
            :files) mapfile -t COMPREPLY < <(compgen -f -- "$2"); compopt -o filenames ;;
            :directories) mapfile -t COMPREPLY < <(compgen -d -- "$2"); compopt -o filenames ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <("$1" COMPLETE -- "${words[@]}" "$2" 2>/dev/null)
}
complete -F _NAME_complete PROGRAM
"""
ZSH = """\
#compdef PROGRAM
# zsh completion of PROGRAM: source <(PROGRAM completion zsh), or a file _PROGRAM in a directory of $fpath
_NAME_complete() {
    local line
    local -a described
    for line in "${(@f)$("${words[1]}" COMPLETE -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            :files) _files ;;
            :directories) _files -/ ;;
            ?*) described+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done
    (( $#described )) && _describe PROGRAM described
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _NAME_complete "$@"; else compdef _NAME_complete PROGRAM; fi
"""
FISH = """\
# fish completion of PROGRAM: PROGRAM completion fish | source
function __NAME_complete
    set -l words (commandline -opc)
    for line in ($words[1] COMPLETE -- $words[2..-1] (commandline -ct) 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path (commandline -ct)
            case :directories
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c PROGRAM -f -a '(__NAME_complete)'
"""
_SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
_EXAMPLES = {
    "bash": (("bash > /etc/bash_completion.d/dra-agent", "for every user of bash"),),
    "zsh": (("zsh > /usr/local/share/zsh/site-functions/_dra-agent", "for every user of zsh"),),
    "fish": (("fish > ~/.config/fish/completions/dra-agent.fish", "for one user of fish"),),
    "words": (("words -- claim get tr", "the claims whose names begin with tr"),),
}


class Candidate(NamedTuple):
    """A completion of the word at the cursor."""

    word: str
    description: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define a verb for each shell, and `words`, which the scripts call."""
    verbs = parser.add_subparsers(dest="shell", metavar="SHELL", required=True)
    for shell, lines in _EXAMPLES.items():
        output = (
            "candidates for the last word; called by the scripts" if shell == "words" else f"the script for {shell}"
        )
        shown = examples(*((f"completion {arguments}", effect) for arguments, effect in lines))
        verb = verbs.add_parser(shell, help=output, description=f"Print {output}.", epilog=shown)
        if shell == "words":
            verb.add_argument("words", nargs=argparse.REMAINDER, metavar="-- WORD", help="the words after the program")
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Print a script, or candidates."""
    if args.shell != "words":
        print(script(args.shell), end="")
        return 0
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    command = next((word for word in words[:-1] if not word.startswith("-")), "")
    print_candidates(build_parser(command if command in COMMANDS else ""), words)
    return 0


def script(shell: str, *, program: str = "dra-agent", complete: str = "completion words") -> str:
    """Return the script of a shell; `complete` is the command that prints candidates."""
    name = program.replace("-", "_")
    return _SCRIPTS[shell].replace("PROGRAM", program).replace("NAME", name).replace("COMPLETE", complete)


def print_candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Print the candidates for the last word, each with a tab and its description."""
    for candidate in candidates(parser, words):
        print(f"{candidate.word}\t{candidate.description}" if candidate.description else candidate.word)


Names = Callable[[str, Sequence[str]], Iterable[Candidate]]
"""Returns the names of objects of a kind, the metavar of an argument; flags among the words may select them."""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str], names: Names | None = None) -> list[Candidate]:
    """Return the completions of the last word; `names` of objects are by default those of the agent of this host."""
    *before, last = words or [""]
    found = sorted(set(_candidates(parser, before, last, names or _names_of_agent)))
    return [candidate for candidate in found if candidate.word.startswith(last) or candidate.word.startswith(":")]


def _candidates(parser: argparse.ArgumentParser, before: Sequence[str], last: str, names: Names) -> Iterator[Candidate]:
    parser, rest = _descend(parser, before)
    if "--" in rest:
        yield Candidate(FILES)
        return
    flag = _open_flag(parser, rest)
    if flag is not None:
        yield from _values(flag, rest, names)
        return
    if last.startswith("--") and "=" in last:
        name, _, _ = last.partition("=")
        action = parser._option_string_actions.get(name)
        for value in _values(action, rest, names) if action is not None else ():
            yield Candidate(value.word if value.word.startswith(":") else f"{name}={value.word}", value.description)
        return
    if last.startswith("-"):
        yield from _flags(parser)
        return
    given = _given_values(parser, rest)
    if not given:
        yield from _described(parser)
    arguments = [
        action
        for action in parser._actions
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
    ]
    for index, action in enumerate(arguments):
        if index == given or (index == len(arguments) - 1 < given and action.nargs in ("*", "+")):
            yield from _values(action, rest, names)


def _descend(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the command that the words name, and the words after it."""
    rest: list[str] = []
    for word in words:
        below = subcommands(parser)
        if word in below and not rest:
            parser = below[word]
        else:
            rest.append(word)
    return parser, rest


def _given_values(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Return the number of positional arguments among the words."""
    return sum(
        not word.startswith("-") and _open_flag(parser, words[:index]) is None for index, word in enumerate(words)
    )


def _open_flag(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Action | None:
    """Return the flag whose value is next."""
    action = parser._option_string_actions.get(words[-1]) if words else None
    return action if action is not None and action.nargs != 0 else None


def _flags(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        if action.help is argparse.SUPPRESS:
            continue
        for spelling in action.option_strings:
            if spelling.startswith("--") and "=" not in spelling:
                yield Candidate(spelling, _line(action.help))


def _described(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield Candidate(choice.dest, _line(choice.help))


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _values(action: argparse.Action, words: Sequence[str], names: Names) -> Iterable[Candidate]:
    """Return the values that an argument can have."""
    if action.choices is not None:
        return [Candidate(str(choice)) for choice in action.choices]
    kind = action.metavar if isinstance(action.metavar, str) else ""
    if kind in _FILE_KINDS:
        return [Candidate(_FILE_KINDS[kind])]
    if kind == "PROFILE" or kind.startswith("PROFILE|"):
        from dra_agent.agent.distributions import SIMULATE, simulation

        names_of_profiles = simulation().profiles() if SIMULATE.is_installed else ()
        return [*map(Candidate, names_of_profiles), *([Candidate(DIRECTORIES)] if kind != "PROFILE" else [])]
    if "|" in kind:
        return map(Candidate, kind.split("|"))
    return names(kind, words)


def _names_of_agent(kind: str, words: Sequence[str]) -> Iterable[Candidate]:
    readers = {"CLAIM": _claims, "OBJECT": _claims, "NAMESPACE": _namespaces, "DEVICE": _devices}
    reader = readers.get(kind)
    return () if reader is None else reader(words)


def _claims(words: Sequence[str]) -> Iterable[Candidate]:
    for view in _views(words):
        in_default = view["namespace"] == "default"
        yield Candidate(view["name"] if in_default else f"{view['namespace']}/{view['name']}", view["phase"])


def _namespaces(words: Sequence[str]) -> Iterable[Candidate]:
    return [Candidate(str(view["namespace"])) for view in _views(words)]


def _views(words: Sequence[str]) -> list[dict[str, str]]:
    """Return the claims of the running agent, or of the ledger of a cluster node; empty where none can be read."""
    from dra_agent.errors import AgentError
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client

    state_dir = _state_dir(words)
    try:
        if exists(state_dir / SOCKET):
            with Client(state_dir / SOCKET) as agent:
                return [*agent.claims(whole=False, timeout_s=TIMEOUT_S)]
        entries, _ = read_copy(state_dir) or ([], None)
    except AgentError:
        return []
    return [{"namespace": entry.namespace, "name": entry.name, "phase": entry.state} for entry in entries]


def _devices(words: Sequence[str]) -> Iterable[Candidate]:
    """Return the devices that the running agent publishes; a scan of the host would take too long."""
    from dra_agent.errors import AgentError
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET, Client, State

    path = _state_dir(words) / SOCKET
    if not exists(path):
        return []
    try:
        with Client(path) as agent:
            state = agent.call(State(), timeout_s=TIMEOUT_S)
    except AgentError:
        return []
    return [
        Candidate(device["name"], str(device.get("attributes", {}).get("productName", {}).get("string", "")))
        for entry in state["slices"]
        for device in entry["spec"].get("devices") or ()
    ]


def _state_dir(words: Sequence[str]) -> Path:
    from dra_agent.agent.config import add_flags, load_config

    parser = Parser(add_help=False)
    add_flags(parser, ["state_dir", "simulate"])
    known, _ = argparse.ArgumentParser.parse_known_args(parser, [word for word in words if word != "--"])
    return load_config(known).state_dir
