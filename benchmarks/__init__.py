"""Benchmarks: `make bench NAME=...` runs one and writes its results."""
