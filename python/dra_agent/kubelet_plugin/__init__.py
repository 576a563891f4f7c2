"""The kubelet plugin: registration with the kubelet, and its gRPC services on unix sockets."""
