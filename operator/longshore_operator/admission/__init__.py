"""Which jobs get GPUs, and which wait: the operator's own admission."""
