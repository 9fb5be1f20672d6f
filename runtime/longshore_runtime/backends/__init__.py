"""Engines, trainers and models: the only package that imports vllm, torch or megatron."""
