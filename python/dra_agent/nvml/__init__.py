"""NVIDIA's management library in a worker process: a crash or hang of the library does not affect the agent.

`client` is the agent's side, `worker` the other; both use `values`. Neither knows the meaning of calls.
"""
