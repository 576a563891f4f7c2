package v1beta1

// QueueAllocationGateKey is the annotation and the scheduling gate of pods that Volcano 1.15 adds to its API.
const QueueAllocationGateKey = GroupName + "/queue-allocation-gate"
