"""What all tests share."""

import os

from hypothesis import settings

from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT

# Ray reads it when it is imported: a thread that outlives a test must not start Ray again behind the next one's back.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = RAY_ENVIRONMENT["RAY_ENABLE_AUTO_CONNECT"]
# Hypothesis would fail examples that take 200 ms, which says something about the machine and nothing about the code.
settings.register_profile("longshore", deadline=None)
settings.load_profile("longshore")
