"""Messages of the kubelet's gRPC interfaces, generated from the .proto files beside them (`make proto`)."""
