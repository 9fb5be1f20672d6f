"""The fragments of the page about published data sets fit rows in the shape of those data sets, to the reward.

The rows are made up; their columns are those that the cards of the data sets document.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from longshore.api.model import Data
from longshore.api.reward import Reward, RewardKind
from longshore.checks.rows import fields_read, functions_of
from longshore_runtime.data.dataset import PromptSets, prompt_sets
from longshore_runtime.data.reading import DataFile, Row, read_files
from longshore_runtime.hub.files import data_files
from longshore_runtime.rewards.kinds.code import cases_of
from longshore_runtime.rewards.maths.agreement import answers_agree
from longshore_runtime.rewards.maths.references import answer_of_reference
from longshore_runtime.rewards.row_fields import with_row_fields

Json = dict[str, Any]

_PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "published-data-sets.md"
_VERL_PROMPT: Final = [
    {"role": "user", "content": "Solve it. The last line of your response should be Answer: $Answer.\n\nWhat is 17*2?"}
]
_EURUS_TESTS: Final = json.dumps({"inputs": ["4\n", "-1\n"], "outputs": ["8\n", "-2\n"]})
_EURUS_CALLS: Final = json.dumps({"fn_name": "twice", "inputs": [[4], [-1]], "outputs": [[8], [-2]]})


def eurus(ability: str, ground_truth: str) -> Json:
    """A row of Eurus."""
    return {
        "data_source": "taco" if ability == "code" else "numina_olympiads",
        "prompt": [{"content": "Write Python code.", "role": "system"}, {"content": "Double n.", "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        "extra_info": {"index": 0, "split": "dummy"},
    }


def hendrycks(number: int) -> Json:
    """A row of MATH."""
    solution = rf"We count: $\boxed{{\frac{{{number}}}{{2}}}}$."
    return {"problem": f"Halve {number}.", "level": "Level 1", "type": "Algebra", "solution": solution}


_SUBJECTS: Final = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
SETS: Final[dict[str, tuple[dict[str, list[Json]], str]]] = {
    "GSM8K": (
        {
            "main/train-00000-of-00001.parquet": [
                {"question": "Natalia has 48 clips ...", "answer": "48/2 = <<48/2=24>>24, 48+24 = 72\n#### 72"},
                {"question": "Weng earns ...", "answer": "12/60 = $<<12/60=0.2>>0.2\n#### 1,010"},
            ],
            "socratic/train-00000-of-00001.parquet": [{"question": "other", "answer": "#### 1"}],
        },
        "Natalia has 48 clips ...",
    ),
    "MATH": ({f"{one}/train-00000-of-00001.parquet": [hendrycks(3), hendrycks(5)] for one in _SUBJECTS}, "Halve 3."),
    "DeepMath": (
        {
            "data/train-00000-of-00010.parquet": [
                {"question": r"Evaluate \( \lim_{x \to \infty} \frac{1}{x} \).", "final_answer": "0", "difficulty": 4.5,
                 "topic": "Mathematics -> Precalculus", "r1_solution_1": "long", "r1_solution_2": "",
                 "r1_solution_3": ""},
                {"question": "Is it continuous?", "final_answer": "Yes", "difficulty": 5.0, "topic": "Mathematics",
                 "r1_solution_1": "", "r1_solution_2": "", "r1_solution_3": ""},
            ]
        },
        "Evaluate",
    ),
    "DAPO-17k": (
        {
            "data/dapo-math-17k.parquet": [
                {"data_source": "math_dapo", "prompt": _VERL_PROMPT, "ability": "MATH",
                 "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
                 "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"}},
            ] * 2
        },
        "What is 17*2?",
    ),
    "Eurus code": (
        {
            "data/train-00000-of-00004.parquet": [
                eurus("math", "6"), eurus("code", _EURUS_TESTS), eurus("code", _EURUS_CALLS)
            ]
        },
        "Double n.",
    ),
}  # fmt: skip
"""Files of each data set, and what its first prompt says."""


class Template:
    """A tokenizer with a chat template, one token per character."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], /, **options: Any) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        return "".join(f"<{one['role']}>{one['content']}" for one in messages) + "<assistant>"


def fragment(heading: str) -> Json:
    """The YAML below a heading of the page."""
    found = re.search(rf"^### {heading}\n.*?```yaml\n(.*?)```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    shown: Json = yaml.safe_load(found[1])
    return shown


def prompts(data: Data, reward: Reward, files: Mapping[str, list[Json]], directory: Path) -> PromptSets:
    """What becomes of the files as they lie in the repository."""
    for name, rows in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), directory / name)
    rows_read: list[Row] = []
    for source in data.each:
        chosen = data_files(list(files), {}, source.origin.config, source.origin.split)
        kept = fields_read(source, reward.functions)
        rows_read += read_files([DataFile(name, directory / name) for name in chosen], source, kept)
    return with_row_fields(prompt_sets(rows_read, data, Template(), 100_000), reward.functions)


@pytest.mark.parametrize("name", re.findall(r"^### (.+)$", _PAGE.read_text(), re.MULTILINE))
def test_the_fragment_of_a_data_set_makes_prompts_that_its_reward_can_score(name: str, tmp_path: Path) -> None:
    files, beginning = SETS[name]
    shown = fragment(name)
    data = Data.model_validate({**shown["data"], "heldOutPrompts": 0})
    reward = Reward.model_validate(shown["reward"])
    sets = prompts(data, reward, files, tmp_path)
    assert len(sets.train) == (14 if name == "MATH" else 2)
    assert beginning in sets.train[0].prompt and sets.train[0].prompt.endswith("<assistant>")
    (function,) = reward.functions
    for record in sets.train:
        assert functions_of(record.domain, [function]) == [function]
        if function.kind is RewardKind.CODE:
            assert len(cases_of(record.fields, function.code.tests_field, record.source)) == 2
        else:
            answer = answer_of_reference(record.answer)
            assert answers_agree(rf"So it is \boxed{{{answer}}}.", record.answer)


def test_the_answer_line_that_dapo_asks_for_is_understood() -> None:
    assert answers_agree("It is 17 * 2.\nAnswer: 34", "34")
    assert not answers_agree("It is 34.\nAnswer: 17", "34")
