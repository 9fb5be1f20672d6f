"""Sampling: engines, the round that drives them, and evaluation."""
