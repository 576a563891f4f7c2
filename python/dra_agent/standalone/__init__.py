"""Claims without Kubernetes: the store, the queue, and the socket that the command line speaks to.

The way of a claim: `service` receives it (`protocol`), `store` persists it, `queue` allocates it in order and has it
prepared.
"""

from __future__ import annotations
