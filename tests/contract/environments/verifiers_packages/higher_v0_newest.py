"""The environment of `higher_v0`, under an id of its own for the last version with its interface."""

from higher_v0 import load_environment as load_environment
