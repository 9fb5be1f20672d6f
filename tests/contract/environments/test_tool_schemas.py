"""Tools are described to models as TRL describes them."""

from typing import Any, Literal

import pytest
from transformers.utils import get_json_schema

from longshore_runtime.environments.tools import BadTools, schemas_of, schemas_of_class
from tests.contract.environments.users import double


class Wide:
    """Tools of every form."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def search(self, query: str, limit: int = 5, order: Literal["up", "down"] | None = None) -> list[str]:
        """Search.

        Args:
            query: What to search for.
            limit: How many to return.
            order: The order of the results.

        Returns:
            The results.
        """
        return [query][:limit]

    async def fetch(self, addresses: list[str], options: dict[str, int]) -> str:
        """Fetch pages.

        Args:
            addresses: Their addresses.
            options: What to do (choices: ["a", "b"])
        """
        return f"{addresses} {options}"

    @staticmethod
    def now() -> str:
        """Return the time."""
        return "now"

    @classmethod
    def create(cls) -> str:
        """Return no tool, as TRL looks for functions."""
        return "created"

    @property
    def state(self) -> str:
        """Fail, as TRL does not evaluate properties."""
        raise AssertionError

    def reply(self, message: str) -> str:
        """Answer as the user."""
        return message

    def get_reward(self) -> float:
        """Return nothing."""
        return 0.0


class Narrow(Wide):
    """Inherits tools."""


@pytest.mark.parametrize("environment", [Wide, Narrow])
def test_methods_of_a_class_are_described_as_those_of_an_instance_in_trl(environment: type[Wide]) -> None:
    instance = environment()
    of_trl = [get_json_schema(method) for method in (instance.fetch, instance.now, instance.search)]
    assert schemas_of_class(environment) == of_trl


def test_functions_are_described_as_in_trl() -> None:
    assert schemas_of([double]) == [get_json_schema(double)]


def test_tool_without_a_docstring_is_refused_by_name() -> None:
    def mute(number: int) -> int:
        return number

    with pytest.raises(BadTools, match=r"^tool 'mute' cannot be described to the model \(DocstringParsingException"):
        schemas_of([mute])


def test_environment_has_at_most_256_tools() -> None:
    with pytest.raises(BadTools, match="it has 257 tools; at most 256 are possible"):
        schemas_of([double] * 257)
