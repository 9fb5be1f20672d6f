"""Answers compared as mathematics: what of a response is its answer, and whether it agrees with a reference."""
