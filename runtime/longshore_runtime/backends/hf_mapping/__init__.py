"""Hugging Face checkpoints <-> the fused and sharded parameters of Megatron-core. Plain torch, no communication."""
