"""Objectives: one module each, with its settings, advantages and token losses. `registry` lists them."""
