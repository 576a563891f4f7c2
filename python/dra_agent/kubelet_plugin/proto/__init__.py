"""Messages of the kubelet's gRPC interfaces, generated from the .proto files next to them (`make proto`)."""
