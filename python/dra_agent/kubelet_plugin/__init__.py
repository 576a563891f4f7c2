"""The kubelet plugin: how the kubelet finds this driver, and what it asks of it over gRPC on unix sockets."""
