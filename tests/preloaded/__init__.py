"""Starts `dra-agent` commands in a third of the CPU time: as forks of a process that has imported the modules.

Imports are most of a short command and half of the start of an agent, and tests start hundreds of both. A fork has an
its own environment, working directory, files, threads and end, like any process. Each pytest worker has one
process that forks. Tests of what happens while an interpreter starts, of signals at that time, of memory and of the
command line itself use `subprocess`. Child processes of the agent are forked too (`children.py`).
"""

from __future__ import annotations

from preloaded.children import fork_children, start_interpreters
from preloaded.command import Command, close, fork, program_folder, run

__all__ = ["Command", "close", "fork", "fork_children", "program_folder", "run", "start_interpreters"]
