"""Reading prompts: what is right is used, what is wrong is told with its line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from longshore.api.model import Data
from longshore_runtime.data.dataset import prompt_sets, read_rows
from longshore_runtime.errors import UserError


class Letters:
    """One token per character."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], /, **options: Any) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        return "|".join(message["content"] for message in messages) + ">"


def data(**options: Any) -> Data:
    return Data(path="prompts.jsonl", **options)


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_become_prompts_and_every_kth_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path, *(f'{{"prompt": "q{n}", "answer": "{n}"}}' for n in range(8)))
    sets = prompt_sets(read_rows(path, data(held_out_prompts=2)), data(held_out_prompts=2), Letters(), 1000)
    assert [record.prompt for record in sets.held_out] == ["q0", "q4"]
    assert [record.index for record in sets.train] == [1, 2, 3, 5, 6, 7]


def test_fields_and_template_are_the_users(tmp_path: Path) -> None:
    path = write(tmp_path, '{"question": "1+1", "solution": 2}')
    options = data(
        prompt_field="question", answer_field="solution", prompt_template="Q: {prompt}\nA:", held_out_prompts=0
    )
    record = prompt_sets(read_rows(path, options), options, Letters(), 1000).train[0]
    assert (record.prompt, record.answer) == ("Q: 1+1\nA:", "2")


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": [{"role": "user", "content": "hi"}], "answer": "a"}')
    assert prompt_sets(read_rows(path, data()), data(), Letters(), 1000).train[0].prompt == "hi>"


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "short", "answer": ""}', '{"prompt": "very long", "answer": ""}')
    sets = prompt_sets(read_rows(path, data(max_prompt_tokens=5)), data(max_prompt_tokens=5), Letters(), 1000)
    assert (len(sets.train), sets.num_too_long) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"prompt": "a", "answer": "b"}', '{"prompt": '], "prompts.jsonl, line 2: not valid JSON"),
        (["[1, 2]"], "line 1: a row must be a JSON object, not list"),
        (['{"question": "a"}'], r"line 1: no field 'prompt' \(it has 'question'\); set data.promptField"),
        (['{"prompt": 3, "answer": ""}'], "line 1: 'prompt' must be a text or a list of messages, not int"),
        (['{"prompt": "a"}'], "line 1: no field 'answer'"),
        (['{"prompt": "", "answer": ""}'], "line 1: the prompt is empty"),
        ([""], "holds no row"),
        (['{"prompt": "' + "x" * 2000 + '", "answer": ""}'], "none of the 1 prompts has at most 1000 tokens"),
    ],
)
def test_a_mistake_in_the_data_is_told_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prompt_sets(read_rows(write(tmp_path, *lines), data()), data(), Letters(), 1000)


def test_a_missing_file_is_told_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path: 'prompts.jsonl' does not exist"):
        read_rows(tmp_path / "prompts.jsonl", data())


def test_prompts_leave_room_for_a_whole_response(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "short", "answer": ""}', '{"prompt": "longer", "answer": ""}')
    assert prompt_sets(read_rows(path, data()), data(), Letters(), 5).num_too_long == 1


def test_messages_that_the_chat_template_refuses_are_told_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": ["no message"], "answer": "a"}')
    with pytest.raises(UserError, match="line 1: 'prompt': message 1 is no object with role and content"):
        prompt_sets(read_rows(path, data()), data(), Letters(), 1000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"prompt": "a", "answer": "b"}\n{"prompt": "é"}'.encode("latin-1"),
            r"prompts.jsonl, line 2: byte 13 \(0xe9\)",
        ),
        (b'{"prompt": "a", "prompt": "b"}', "prompts.jsonl, line 1: the key 'prompt' is there twice"),
    ],
)
def test_a_line_that_is_no_row_is_a_mistake_of_the_user(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "prompts.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_rows(tmp_path / "prompts.jsonl", data())
