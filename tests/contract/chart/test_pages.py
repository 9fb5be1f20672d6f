"""What the pages say to Helm: values that they show, and options of their commands, are those of the chart."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="the chart is rendered with helm-python-sdk")

Json = dict[str, Any]

_ROOT: Final = Path(__file__).parents[3]
_CHART: Final = _ROOT / "charts" / "longshore"
_VALUES: Final = yaml.safe_load((_CHART / "values.yaml").read_text()).keys()
_PAGES: Final = sorted((_ROOT / "docs").rglob("*.md"))
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(r"^\s*(?:\$ )?(helm (?:install|upgrade) (?:.*\\\n)*.*)$", re.MULTILINE)
_ARGUMENTS: Final = [
    "longshore",
    "charts/longshore",
    "--namespace",
    "longshore-system",
]


def _shown() -> Iterator[Any]:
    """Blocks of YAML that are values of the chart."""
    for page in _PAGES:
        for indent, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if language != "yaml":
                continue
            for one in yaml.safe_load_all(re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)):
                if isinstance(one, dict) and one and one.keys() <= _VALUES:
                    yield pytest.param(one, id=f"{page.stem}-{'-'.join(one)}")


def _commands() -> Iterator[Any]:
    for page in _PAGES:
        for command in _COMMAND.findall(page.read_text(encoding="utf-8")):
            yield pytest.param(shlex.split(command.replace("\\\n", " ")), id=page.stem)


def _set(options: list[str]) -> Json:
    """Values of `--set` options: names with dots, scalars, and lists in braces."""
    values: Json = {}
    for option in options:
        names, _, text = option.partition("=")
        *parents, last = names.split(".")
        place = values
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = text.strip("{}").split(",") if text.startswith("{") else text.replace("DIGEST", "0" * 64)
    return values


def _render(values: Json) -> None:
    with helm.Chart.load(str(_CHART)) as chart:
        chart.validate_schema(values)
        assert chart.render(values, name="longshore")


@pytest.mark.parametrize("values", [*_shown()])
def test_values_that_a_page_shows_are_taken(values: Json) -> None:
    _render(values)


@pytest.mark.parametrize("command", [*_commands()])
def test_a_command_names_the_chart_and_options_that_it_takes(command: list[str]) -> None:
    assert command[2:6] == _ARGUMENTS
    options = [command[index + 1] for index, word in enumerate(command) if word == "--set"]
    _render(_set(options))
