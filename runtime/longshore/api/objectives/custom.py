"""An objective of the user's own: a function in Python that computes the losses of tokens."""

import importlib
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from longshore.api.base import Freeform, ImportPath
from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses


class Custom(Objective):
    """A function of the user's own, at `importPath`.

    It is called as `function(tokens, **settings)` and returns the loss of each token, a tensor with the shape of
    `tokens.log_probs` and with a gradient; or that and a bool tensor that says which tokens were clipped. `tokens` is a
    `longshore.api.objectives.objective.LossTokens`. It runs in the trainers, and is tried before engines start.
    """

    name: Literal["Custom"] = "Custom"
    import_path: ImportPath
    """Python function as `package.module:function`."""
    settings: Freeform = Field(default_factory=dict)
    """Further arguments of the function, by name."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Call the function."""
        result = self.function()(tokens, **self.settings)
        return TokenLosses(*result) if isinstance(result, tuple) else TokenLosses(result)

    def function(self) -> Callable[..., Any]:
        """Import the function; raises what importing its module does, or AttributeError."""
        module, name = self.import_path.split(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found
