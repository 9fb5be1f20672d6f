"""`longshore watch`: status objects folded into a history, drawn by pure functions."""
