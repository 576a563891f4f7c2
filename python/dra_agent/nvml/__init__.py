"""NVIDIA's management library in a process of its own: what crashes or hangs there does neither here.

`client` is the agent's side and `worker` the other; `values` is what they share. The meaning of calls is not part
business here.
"""
