"""The Megatron-core trainer: tensor, pipeline, context and data parallelism, and the distributed optimizer."""
