"""Rewards of responses, computed in separate processes."""
