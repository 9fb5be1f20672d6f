"""The kinds of reward functions, one module each; `registry` knows them by name."""
