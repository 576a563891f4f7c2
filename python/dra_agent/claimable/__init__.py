"""May a function be claimed, and what does a container get: the only place that answers it.

`decide` and `use` have values in and values out. `network` reads the host's network for them, from the kernel or from
files; `dra_agent.inventory.claimability` reads the rest, and applies the rules of the operator.
"""
