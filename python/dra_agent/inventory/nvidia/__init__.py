"""NVIDIA GPUs: what the management library (NVML) and the driver's procfs say of them."""
