"""May a function be claimed, and what does a container get: the only place that answers it.

Values in, values out: other parts read the host, and these modules decide.
"""
