"""Reading prompts: what is right is used, what is wrong is reported with its line."""

import errno
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from longshore.api.model import Data, DataFormat
from longshore.api.reward import RewardFunction
from longshore.checks.rows import fields_read
from longshore.policy.draws import DrawCursor
from longshore_runtime.data.dataset import PromptSets, prompt_sets
from longshore_runtime.data.reading import DataFile, Row, read_files, read_rows
from longshore_runtime.errors import UserError


class Letters:
    """One token per character."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], /, **options: Any) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        return "|".join(str(message["content"] or "") for message in messages) + ">"


def data(**options: Any) -> Data:
    return Data(path="prompts.jsonl", **options)


def prompts(path: Path, options: Data, context_tokens: int = 1000, tokenizer: Any = None) -> PromptSets:
    """Everything from the file to the prompts."""
    return prompt_sets(read_rows(path, options.each[0]), options, tokenizer or Letters(), context_tokens)


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_become_prompts_and_every_kth_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path, *(f'{{"prompt": "q{n}", "answer": "{n}"}}' for n in range(8)))
    sets = prompts(path, data(held_out_prompts=2))
    assert [record.prompt for record in sets.held_out] == ["q0", "q4"]
    assert [record.row for record in sets.train] == [1, 2, 3, 5, 6, 7]


def test_fields_and_template_are_the_users(tmp_path: Path) -> None:
    path = write(tmp_path, '{"question": "1+1", "solution": 2}')
    options = data(
        prompt_field="question", answer_field="solution", prompt_template="Q: {prompt}\nA:", held_out_prompts=0
    )
    record = prompts(path, options).train[0]
    assert (record.prompt, record.answer) == ("Q: 1+1\nA:", "2")


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": [{"role": "user", "content": "hi"}], "answer": "a"}')
    assert prompts(path, data()).train[0].prompt == "hi>"


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "short", "answer": ""}', '{"prompt": "very long", "answer": ""}')
    sets = prompts(path, data(max_prompt_tokens=5))
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
def test_a_mistake_in_the_data_is_reported_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prompts(write(tmp_path, *lines), data())


def test_a_missing_file_is_reported_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path: 'prompts.jsonl' does not exist"):
        read_rows(tmp_path / "prompts.jsonl", data().each[0])


def test_prompts_leave_room_for_a_whole_response(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "short", "answer": ""}', '{"prompt": "longer", "answer": ""}')
    assert prompts(path, data(), 5).num_too_long == 1


def test_messages_that_the_chat_template_refuses_are_reported_with_their_line(tmp_path: Path) -> None:
    for messages, mistake in (
        ('["no message"]', "message 1 is no object with role and content"),
        ('[{"content": "What is 2+2?"}]', "message 1 is no object with role and content"),
        ('[{"role": ["user"], "content": "What is 2+2?"}]', "message 1 is no object with role and content"),
        (
            '[{"role": "user", "content": "x"}, {"role": "user", "text": "y"}]',
            "message 2 has no content; it has 'role', 'text'",
        ),
        ('[{"role": "user", "content": null}]', "message 1 has no content"),
        (
            '[{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]',
            "the last message is from the assistant, and the prompt would contain it; remove it",
        ),
        (
            '[{"role": "user", "content": "2+2?"}, {"role": "model", "content": "4"}]',
            "the last message is from the model,",
        ),
    ):
        path = write(tmp_path, f'{{"prompt": {messages}, "answer": "a"}}')
        with pytest.raises(UserError, match=f"line 1: 'prompt': {mistake}"):
            prompts(path, data())


def test_a_message_that_calls_a_tool_needs_no_content(tmp_path: Path) -> None:
    call = '{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}'
    result = '{"role": "tool", "content": "3"}'
    path = write(tmp_path, f'{{"prompt": [{{"role": "user", "content": "x"}}, {call}, {result}], "answer": "a"}}')
    assert len(prompts(path, data()).train) == 1


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
        read_rows(tmp_path / "prompts.jsonl", data().each[0])


class Recording(Letters):
    """Remembers how the chat template was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Mapping[str, str]], dict[str, Any]]] = []

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        self.calls.append((list(messages), options))
        return super().apply_chat_template(messages, **options)


def test_with_chat_a_text_is_a_user_message_and_what_it_says_reaches_the_template(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "1+1", "answer": "2"}')
    chat = {"systemPrompt": "Be brief.", "template": "{{ x }}", "templateArguments": {"x": False}}
    tokenizer = Recording()
    sets = prompts(path, data(chat=chat, prompt_template="Q: {prompt}", held_out_prompts=0), tokenizer=tokenizer)
    ((messages, options),) = tokenizer.calls
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q: 1+1"}]
    assert options == {
        "chat_template": "{{ x }}", "x": False, "tokenize": False, "add_generation_prompt": True
    }  # fmt: skip
    assert list(sets.train[0].messages) == messages


TEXT, IMAGE = {"type": "text", "text": "hi"}, {"type": "image", "image": "a.png"}


@pytest.mark.parametrize(
    "conversation",
    [
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
            {"role": "tool", "content": "3"},
        ],
        [{"role": "user", "content": [TEXT, IMAGE]}],
    ],
    ids=["messages", "parts"],
)
def test_keys_that_parquet_adds_do_not_reach_the_template(tmp_path: Path, conversation: list[dict[str, Any]]) -> None:
    rows = [{"prompt": conversation, "answer": "a"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    options, tokenizer = Data(path="a.parquet", format=DataFormat.PARQUET, held_out_prompts=0), Recording()
    sets = prompts(tmp_path / "a.parquet", options, tokenizer=tokenizer)
    ((messages, _),) = tokenizer.calls
    assert messages == rows[0]["prompt"]
    assert list(sets.train[0].messages) == messages


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_conversation_with_a_system_message_keeps_its_own(tmp_path: Path, role: str) -> None:
    messages = [{"role": role, "content": "mine"}, {"role": "user", "content": "hi"}]
    path = write(tmp_path, json.dumps({"prompt": messages, "answer": "a"}))
    record = prompts(path, data(chat={"systemPrompt": "other"}, held_out_prompts=0)).train[0]
    assert record.prompt == "mine|hi>"


def test_a_model_without_chat_template_is_reported_by_the_field_that_sets_one(tmp_path: Path) -> None:
    tokenizer = Recording()
    tokenizer.chat_template = None  # type: ignore[attr-defined]
    path = write(tmp_path, '{"prompt": [{"role": "user", "content": "hi"}], "answer": "a"}')
    with pytest.raises(UserError, match=r"^data\.chat\.template: prompts\.jsonl, line 1 is a conversation, and"):
        prompts(path, data(), tokenizer=tokenizer)
    assert prompts(path, data(chat={"template": "{{ x }}"}), tokenizer=tokenizer).train


def test_dots_lead_into_objects_and_a_field_of_that_very_name_comes_first(tmp_path: Path) -> None:
    nested = {"reward_model": {"ground_truth": "34", "style": "rule"}, "ask": {"me": "1+1"}, "ask.me": "exact"}
    options = data(prompt_field="ask.me", answer_field="reward_model.ground_truth", held_out_prompts=0)
    record = prompts(write(tmp_path, json.dumps(nested)), options).train[0]
    assert (record.prompt, record.answer) == ("exact", "34")
    wrong = data(answer_field="reward_model.solution")
    with pytest.raises(UserError, match=r"no field 'reward_model.solution' .*; set data.answerField"):
        prompts(write(tmp_path, json.dumps({"prompt": "a", "reward_model": {}})), wrong)


def test_a_reference_that_is_no_text_is_kept_as_it_is(tmp_path: Path) -> None:
    record = prompts(write(tmp_path, '{"prompt": "a", "answer": [1, 2]}'), data(held_out_prompts=0)).train[0]
    assert (record.answer, record.reference) == ("[1, 2]", [1, 2])


def test_only_rows_that_are_asked_for_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "answer": "", "ability": "code" if n % 2 else "math"} for n in range(4)]
    path = write(tmp_path, *map(json.dumps, rows))
    sets = prompts(path, data(where={"ability": "code"}, held_out_prompts=0))
    assert [record.prompt for record in sets.train] == ["p1", "p3"]
    with pytest.raises(UserError, match=r"^data\.where: none of the 4 rows has \{'ability': 'art'\}"):
        prompts(path, data(where={"ability": "art"}))


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (True, "true"), (0.5, "0.5"), ("5", "5")])
def test_rows_are_chosen_by_numbers_and_truth_values_too(tmp_path: Path, value: object, text: str) -> None:
    path = write(tmp_path, *(json.dumps({"prompt": f"p{n}", "answer": "", "level": n or value}) for n in (0, 7)))
    sets = prompts(path, data(where={"level": text}, held_out_prompts=0))
    assert [record.prompt for record in sets.train] == ["p0"]


@pytest.mark.parametrize(
    "messages",
    [
        '[{"role": "user", "content": "What is 0?"}]',
        ' {"content": "What is 0?", "role": "user"}\n',
        "[{'role': 'user', 'content': 'What is 0?'}]",
        "array([{'content': 'Count.', 'role': 'system'}\n {'content': 'What is 0?', 'role': 'user'}], dtype=object)",
    ],
)
def test_messages_that_are_written_out_as_a_text_are_refused(tmp_path: Path, messages: str) -> None:
    path = write(tmp_path, json.dumps({"prompt": messages, "answer": ""}))
    with pytest.raises(UserError, match=r"line 1: 'prompt' is a text that spells out messages.*store the list itself"):
        prompts(path, data())


@pytest.mark.parametrize(
    "text",
    ['[{"role": "user", "content": "a"}] What is wrong here?', '{"name": "Ada", "role": "x", "content": "y"}', "[1]"],
)
def test_other_texts_with_brackets_are_prompts(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, json.dumps({"prompt": text, "answer": ""}))
    assert prompts(path, data(held_out_prompts=0)).train[0].prompt == text


@pytest.mark.parametrize("fields", [{}, {"topic": 3}, {"topic": None}])
def test_a_row_without_a_domain_is_reported_by_its_line_and_the_field(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write(tmp_path, json.dumps({"prompt": "a", "answer": "b", **fields}))
    with pytest.raises(UserError, match=r"line 1: 'topic' must be a text .* data.domainField$"):
        prompts(path, data(domain_field="topic"))


def test_parquet_files_are_read_with_lists_and_objects_in_their_rows(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"q{n}"}], "reward_model": {"ground_truth": str(n)}} for n in range(6)
    ]
    directory = tmp_path / "set"
    (directory / "deep").mkdir(parents=True)
    for part, name in ((rows[:4], "b.parquet"), (rows[4:], "deep/a.parquet")):
        parquet.write_table(pyarrow.Table.from_pylist(part), directory / name)
    options = {"format": "Parquet", "answer_field": "reward_model.ground_truth", "held_out_prompts": 0}
    whole = prompts(directory, Data(path="set", **options))
    assert [(one.prompt, one.answer) for one in whole.train] == [(f"q{n}>", str(n)) for n in range(6)]
    assert whole.train[5].source == "set/deep/a.parquet, row 1"
    one = prompts(directory / "b.parquet", Data(path="set/b.parquet", **options))
    assert len(one.train) == 4


@pytest.mark.parametrize("hidden", [".longshore-k3x9", "deep/.longshore-k3x9", "deep/.longshore-k3x9/deep"])
def test_what_is_still_being_copied_into_a_directory_is_no_part_of_it(hidden: str, tmp_path: Path) -> None:
    directory = tmp_path / ".storage" / "set"
    (directory / hidden).mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "q", "answer": "a"}]), directory / "a.parquet")
    (directory / hidden / "a.parquet").write_bytes(b"PAR1 and the rest is on its way")
    (directory / ".a.parquet").write_bytes(b"PAR1 and the rest is on its way")
    source = Data(path="set", format=DataFormat.PARQUET).each[0]
    assert [row.source for row in read_rows(directory, source)] == ["set/a.parquet, row 0"]


def test_columns_that_nobody_reads_are_left_in_their_file(tmp_path: Path) -> None:
    row = {"question": "q", "final_answer": "a", "topic": "t", "r1_solution_1": "long", "meta": {"tests": []}}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    source = Data(hub="a/b", prompt_field="question", answer_field="final_answer", where={"topic": "t"}).each[0]
    files = [DataFile("a.parquet", tmp_path / "a.parquet")]

    def read(**function: Any) -> set[str]:
        functions = [RewardFunction.model_validate({"name": "one", **function})]
        return set(read_files(files, source, fields_read(source, functions))[0].fields)

    assert read(kind="Maths") == {"question", "final_answer", "topic"}
    assert read(kind="Code", code={"testsField": "meta.tests"}) == {"question", "final_answer", "topic", "meta"}
    assert read(kind="Python", importPath="a:b", signature="TRL") == read(kind="HTTP", http={"url": "http://a"})
    assert read(kind="HTTP", http={"url": "http://a"}) == row.keys()


def test_a_column_that_is_missing_is_reported_with_all_that_there_are(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "q", "other": "a"}]), tmp_path / "a.parquet")
    settings = Data(hub="a/b", prompt_field="question")
    files = [DataFile("a/b/a.parquet", tmp_path / "a.parquet")]
    with pytest.raises(UserError, match=r"^a/b/a\.parquet, row 0: no field 'answer' \(it has 'question', 'other'\)"):
        prompt_sets(read_files(files, settings.each[0], {"question", "answer"}), settings, Letters(), 1000)


class Columns:
    """Remembers which columns are read of Parquet files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[list[str]] = []
        iter_batches = parquet.ParquetFile.iter_batches

        def noted(file: parquet.ParquetFile, **options: Any) -> Any:
            self.read.append(options["columns"])
            return iter_batches(file, **options)

        monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)


@pytest.mark.parametrize("fields", [{"question", "answer", "topic"}, None])
def test_a_column_that_is_missing_is_reported_before_the_others_are_read(
    fields: set[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Columns(monkeypatch)
    rows = [{"solutions": "long", "question": "q", "topic": topic} for topic in ("art", "maths", "maths")]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = Data(hub="a/b", prompt_field="question", where={"topic": "maths"}).each[0]
    sentence = (
        r"^a\.parquet, row 1: no field 'answer' \(it has 'solutions', 'question', 'topic'\); set data\.answerField$"
    )
    with pytest.raises(UserError, match=sentence):
        read_files([DataFile("a.parquet", tmp_path / "a.parquet")], source, fields)
    assert columns.read == [["question", "topic"]]


def test_a_file_of_which_no_row_is_wanted_needs_no_column_for_the_answer(tmp_path: Path) -> None:
    rows = {"a.parquet": {"prompt": "q", "topic": "art"}, "b.parquet": {"prompt": "q", "answer": "a", "topic": "maths"}}
    for name, row in rows.items():
        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / name)
    source = Data(hub="a/b", where={"topic": "maths"}).each[0]
    found = read_files([DataFile(name, tmp_path / name) for name in rows], source)
    assert [row.source for row in found] == ["b.parquet, row 0"]


def test_a_damaged_parquet_file_is_reported_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match=r"^a\.parquet is no Parquet file, or a damaged one \(.+\); copy it again$"):
        prompts(tmp_path / "a.parquet", Data(path="a.parquet", format=DataFormat.PARQUET))


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
def test_damage_anywhere_in_a_parquet_file_is_reported_by_its_name(tmp_path: Path, codec: str) -> None:
    rows = [{"prompt": f"question {number} of many", "answer": str(number)} for number in range(2_000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression=codec)
    whole, random = path.read_bytes(), Random(0)
    reported = 0
    for _ in range(30):
        place = random.randrange(4, len(whole) - 4_000)
        path.write_bytes(whole[:place] + random.randbytes(16) + whole[place + 16 :])
        try:
            read_rows(path, Data(path="a.parquet", format=DataFormat.PARQUET).each[0])
        except UserError as error:
            reported += 1
            assert str(error).startswith("a.parquet ")
    assert reported, "some damage cannot be noticed, and some has to be"


def test_text_of_a_parquet_file_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    latin = pyarrow.array(["Größe".encode("latin-1")]).cast(pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"prompt": latin, "answer": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"^a\.parquet holds text that is not UTF-8 .*; write it again as UTF-8$"):
        prompts(tmp_path / "a.parquet", Data(path="a.parquet", format=DataFormat.PARQUET))


def test_a_disk_that_fails_is_no_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "a.parquet").touch()
    monkeypatch.setattr(parquet, "ParquetFile", fail)
    with pytest.raises(OSError, match="Input/output error"):
        prompts(tmp_path / "a.parquet", Data(path="a.parquet", format=DataFormat.PARQUET))


MIX: dict[str, Any] = {
    "sources": [
        {"name": "maths", "path": "maths.jsonl", "weight": 3, "promptField": "question", "domain": "algebra"},
        {"name": "code", "path": "code.jsonl", "domainField": "topic", "promptTemplate": "Program: {prompt}"},
    ]
}


def mixed(num_maths: int, num_code: int, **options: Any) -> PromptSets:
    """Prompts of two data sets with fields of their own."""
    settings = Data.model_validate(MIX | options)
    maths, code = settings.each
    rows = [Row(f"maths, {n}", {"question": f"m{n}", "answer": "1"}, maths) for n in range(num_maths)]
    rows += [Row(f"code, {n}", {"prompt": f"c{n}", "answer": "", "topic": "py"}, code) for n in range(num_code)]
    return prompt_sets(rows, settings, Letters(), 1000)


def test_each_data_set_of_a_mix_has_fields_of_its_own_and_shares_the_others() -> None:
    sets = mixed(4, 2, heldOutPrompts=0)
    assert [(one.prompt, one.domain) for one in sets.train] == [
        *((f"m{n}", "algebra") for n in range(4)), ("Program: c0", "py"), ("Program: c1", "py")
    ]  # fmt: skip
    assert [(share.name, share.num_prompts, share.weight) for share in sets.shares] == [("maths", 4, 3), ("code", 2, 1)]


def test_draws_of_a_mix_have_its_shares_and_those_of_one_data_set_are_what_they_were() -> None:
    sets = mixed(40, 10, heldOutPrompts=10)
    assert len(sets.train) == 40
    draws = sets.draws(seed=1).take(8)
    assert Counter(sets.train[draw.index].domain for draw in draws) == {"algebra": 6, "py": 2}
    assert PromptSets(sets.train, (), 0).draws(seed=1).take(50) == DrawCursor(40, seed=1).take(50)


def test_a_data_set_of_a_mix_of_which_no_prompt_is_left_is_reported_by_its_name() -> None:
    with pytest.raises(UserError, match=r"^data\.sources\[code\]: no prompt of it is left to train on; add rows"):
        mixed(4, 3, maxPromptTokens=5, heldOutPrompts=0)


def test_mistakes_in_a_mix_are_reported_with_the_field_of_their_data_set() -> None:
    settings = Data.model_validate(MIX)
    with pytest.raises(UserError, match=r"set data\.sources\[maths\]\.promptField$"):
        prompt_sets([Row("maths, 0", {"prompt": "a"}, settings.each[0])], settings, Letters(), 1000)
