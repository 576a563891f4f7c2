"""What-if questions about claims: `allocate` answers as kube-scheduler would, on the API's own JSON objects."""
