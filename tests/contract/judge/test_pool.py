"""A judge that several servers share: which is asked, and what follows when one fails or is gone."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longshore_runtime.judge.addresses import Address, publish, was_published
from longshore_runtime.judge.errors import NoReply, NoReplyYet
from longshore_runtime.judge.options import PoolJudgeOptions
from longshore_runtime.judge.pool import PoolJudge
from tests.contract.judge.server import Answer, JudgeServer

ATTEMPT = 3
QUESTIONS = [f"Why {number}?" for number in range(20)]


def echo(prompts: Sequence[str], max_tokens: int) -> list[str]:
    return [f"{prompt}, {max_tokens}" for prompt in prompts]


class Pool:
    """Servers that have published their addresses, and a judge that asks them."""

    def __init__(self, directory: Path, num_servers: int) -> None:
        self.directory = directory
        self.servers = [JudgeServer(echo) for _ in range(num_servers)]
        token_file = directory / "token"
        token_file.write_text("s3cret\n")
        self.options = PoolJudgeOptions(directory / "judges", num_servers, ATTEMPT, "qwen", token_file, wait_s=30.0)
        self.judge = PoolJudge(self.options)
        for replica in range(num_servers):
            self.publish(replica, self.servers[replica])

    def publish(self, replica: int, server: JudgeServer, attempt: int = ATTEMPT) -> None:
        publish(self.options.directory, replica, Address(server.url, attempt))

    def num_requests(self) -> list[int]:
        """Requests by server."""
        return [len(server.received) for server in self.servers]

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Callable[[int], Pool]]:
    made: list[Pool] = []

    def make(num_servers: int) -> Pool:
        made.append(Pool(tmp_path, num_servers))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def pool(pools: Callable[[int], Pool]) -> Pool:
    """Two servers."""
    return pools(2)


def test_questions_spread_over_the_servers_and_replies_keep_their_order(pool: Pool) -> None:
    assert pool.judge.complete(QUESTIONS, 7) == [f"{question}, 7" for question in QUESTIONS]
    assert sum(pool.num_requests()) == len(QUESTIONS)
    assert min(pool.num_requests()) > len(QUESTIONS) // 4


def test_no_question_has_no_reply(pool: Pool) -> None:
    assert pool.judge.complete([], 7) == []


def test_a_question_goes_to_the_server_that_has_seen_it_before(pool: Pool) -> None:
    for _ in range(3):
        pool.judge.complete(["Why?"], 7)
    assert sorted(pool.num_requests()) == [0, 3]


def test_the_token_of_the_job_goes_with_every_question(pool: Pool) -> None:
    pool.judge.complete(QUESTIONS, 7)
    received = [request for server in pool.servers for request in server.received]
    assert {request.authorization for request in received} == {"Bearer s3cret"}
    assert {request.body["model"] for request in received} == {"qwen"}


@pytest.mark.parametrize("answer", [Answer(503), Answer(401)], ids=["fails", "belongs to others"])
def test_where_one_server_fails_another_is_asked(pool: Pool, answer: Answer) -> None:
    for server in pool.servers:
        server.answers = [Answer(answer.status, b"no")]
    pool.servers[0].answers *= len(QUESTIONS)
    pool.servers[1].answers = []
    assert pool.judge.complete(QUESTIONS, 7) == [f"{question}, 7" for question in QUESTIONS]


def test_where_two_fail_it_is_a_fault_although_a_third_is_there(pools: Callable[[int], Pool]) -> None:
    pool = pools(3)
    for server in pool.servers:
        server.answers = [Answer(500, b"CUDA out of memory")] * 2
    with pytest.raises(NoReplyYet, match=r"answered 500 \(CUDA out of memory\)"):
        pool.judge.complete(["Why?"], 7)
    assert sorted(pool.num_requests()) == [0, 1, 1]


def test_a_server_that_is_gone_is_passed_over(pool: Pool) -> None:
    pool.servers[0].close()
    assert pool.judge.complete(QUESTIONS, 7) == [f"{question}, 7" for question in QUESTIONS]
    assert pool.num_requests() == [0, len(QUESTIONS)]


def test_what_no_server_can_answer_is_asked_once(pool: Pool) -> None:
    for server in pool.servers:
        server.answers = [Answer(400, b"too long")]
    with pytest.raises(NoReply, match=r"answered 400 \(too long\)"):
        pool.judge.complete(["Why?"], 7)
    assert sum(pool.num_requests()) == 1


def test_a_lost_server_is_waited_for_and_found_at_its_new_address(pools: Callable[[int], Pool]) -> None:
    pool = pools(1)
    pool.servers[0].close()
    with ThreadPoolExecutor(1) as executor:
        replies = executor.submit(pool.judge.complete, ["Why?"], 7)
        pool.servers[0] = JudgeServer(echo)
        pool.publish(0, pool.servers[0])
        assert replies.result(timeout=120) == ["Why?, 7"]


def test_the_address_of_an_earlier_attempt_is_void(pools: Callable[[int], Pool]) -> None:
    pool = pools(1)
    pool.publish(0, pool.servers[0], attempt=ATTEMPT - 1)
    hurried = PoolJudge(PoolJudgeOptions(pool.options.directory, 1, ATTEMPT, "qwen", None, wait_s=0.0))
    with pytest.raises(NoReplyYet, match="no pod of the judge could be reached for 0 s"):
        hurried.complete(["Why?"], 7)
    assert pool.num_requests() == [0]


def test_an_address_stays_known_to_those_who_come_later(pool: Pool) -> None:
    assert was_published(pool.options.directory, 1)
    assert not was_published(pool.options.directory, 2)
