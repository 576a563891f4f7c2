"""The read-only page of `dra-agent ui`: values, HTML, and the server that shows them to a browser of this machine.

Nothing here reads a host or a cluster: what is shown comes from functions that the command passes in.
"""
