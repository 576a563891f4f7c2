"""Commands about a cluster: those of `dra-agent`, and the kubectl plugin."""
