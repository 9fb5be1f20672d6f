"""What all tests share."""

from hypothesis import settings

# Hypothesis would fail examples that take 200 ms, which says something about the machine and nothing about the code.
settings.register_profile("longshore", deadline=None)
settings.load_profile("longshore")
