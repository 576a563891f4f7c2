"""Claims without Kubernetes: the store, the queue, and the socket that the command line speaks to.

The way of a claim: `wire`/`server` take it in, `store` keeps it, `queue` allocates it in its turn and has it prepared.
"""

from __future__ import annotations
