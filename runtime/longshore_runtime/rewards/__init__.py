"""Rewards: what a response is worth, computed in a process of its own."""
