"""Nine jobs of three teams in two queues of Kueue, on eight GPUs."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.operator.bookings import Bookings, Gang
from tests.contract.operator.harness import Cluster, Jobs, Operator, eventually, job_spec
from tests.contract.operator.kueue import ON_LINUX, Kueue

QUOTAS = {"production": 4, "research": 4}
DEADLINE_S = 240.0
TRAINS = """
trap 'touch "$LONGSHORE_STORAGE/checkpoint"; exit 143' TERM
began='from the beginning'
[ -e "$LONGSHORE_STORAGE/checkpoint" ] && began='from its checkpoint'
until [ -e "$LONGSHORE_STORAGE/stop" ]; do sleep 1 & wait $!; done
echo "$began" > "$LONGSHORE_TERMINATION_LOG"
"""
"""A coordinator that ends when it is asked to, and says where its last attempt began."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Member:
    """A job of the fleet."""

    team: int
    name: str
    queue: str
    gpus: int
    is_urgent: bool = False


FIRST = [
    Member(0, "fine-tune", "production", 2),
    Member(1, "distil", "production", 2),
    Member(2, "ablation", "research", 4),
]
"""They fill both queues."""
WAITING = [
    Member(0, "long-context", "production", 4),
    Member(1, "sweep", "research", 2),
    Member(2, "evaluation", "research", 2),
]
URGENT = [
    Member(0, "hotfix", "production", 3, is_urgent=True),
    Member(2, "deadline", "research", 2, is_urgent=True),
]
"""There is room for them only without the first."""
PROBE = Member(1, "probe", "production", 1)
"""It fits beside the urgent one, in front of older ones that do not."""
FLEET = [*FIRST, *WAITING, *URGENT, PROBE]


@pytest.fixture
def queues(cluster: Cluster, teams: tuple[Jobs, Jobs, Jobs], kueue_operator: Operator) -> Iterator[dict[str, Kueue]]:
    """Two ClusterQueues, each with a LocalQueue in every team's namespace."""
    made = {name: Kueue(cluster, f"{name}-{next(_numbers)}") for name in QUOTAS}
    for name, kueue in made.items():
        kueue.create_cluster_queue(QUOTAS[name], ON_LINUX)
        for team in teams:
            kueue.create_local_queue(team.namespace, name)
    yield made
    for team in teams:
        team.delete_all()
    for kueue in made.values():
        kueue.delete_queue()


class Fleet:
    """The jobs of all teams."""

    def __init__(self, teams: tuple[Jobs, Jobs, Jobs], queues: dict[str, Kueue]) -> None:
        self._teams = teams
        self._queues = queues
        self._released: set[Member] = set()

    def submit(self, member: Member) -> None:
        labels = {"kueue.x-k8s.io/queue-name": member.queue}
        if member.is_urgent:
            labels["kueue.x-k8s.io/priority-class"] = self._queues[member.queue].name
        spec = job_spec(coordinator=TRAINS, replicas=member.gpus)
        self._teams[member.team].create(member.name, labels=labels, **spec)

    def wait_phase(self, member: Member, phase: str) -> None:
        self._teams[member.team].wait_phase(phase, member.name)

    def wait_refused(self, member: Member) -> None:
        """Wait until a job knows that there is no room."""
        self._teams[member.team].wait_condition("Admitted", "QuotaPending", member.name)

    def phase(self, member: Member) -> str:
        return str(self._teams[member.team].status(member.name).get("phase"))

    def attempt(self, member: Member) -> int:
        return int(self._teams[member.team].status(member.name)["attempt"])

    def says(self, member: Member) -> str:
        """What its coordinator said in the end."""
        return str(self._teams[member.team].condition("Complete", member.name).get("message"))

    def key(self, member: Member) -> tuple[str, str]:
        return self._teams[member.team].namespace, member.name

    def have_ended(self) -> bool:
        """Whether all jobs have succeeded; those that run are asked to end."""
        phases: dict[tuple[str, str], str] = {}
        for team in self._teams:
            phases |= {(team.namespace, name): status.get("phase", "") for name, status in team.statuses().items()}
        for member in [one for one in FLEET if phases[self.key(one)] == "Running" and one not in self._released]:
            self._released.add(member)
            self._teams[member.team].execute(f"{member.name}-coordinator", 'touch "$LONGSHORE_STORAGE/stop"')
        return set(phases.values()) == {"Succeeded"}


@pytest.mark.usefixtures("running_pods")
def test_nine_jobs_of_three_teams_share_eight_gpus_and_all_end(
    cluster: Cluster, teams: tuple[Jobs, Jobs, Jobs], queues: dict[str, Kueue]
) -> None:
    fleet = Fleet(teams, queues)
    gangs = {fleet.key(member): Gang((member.queue,), member.gpus) for member in FLEET}
    with Bookings(cluster.core, gangs, QUOTAS) as bookings:
        for member in FIRST:
            fleet.submit(member)
        for member in FIRST:
            fleet.wait_phase(member, "Running")

        for member in WAITING:
            fleet.submit(member)
        for member in WAITING:
            fleet.wait_refused(member)
        first = {fleet.key(member) for member in FIRST}
        eventually("only the first have pods", lambda: bookings.holders() == first)

        for member in URGENT:
            fleet.submit(member)
        for member in URGENT:
            fleet.wait_phase(member, "Running")
        eventually("the first have no pods", lambda: not first & bookings.holders())
        assert [fleet.phase(member) for member in FIRST] == ["Queued"] * len(FIRST)
        fleet.submit(PROBE)
        fleet.wait_phase(PROBE, "Running")
        assert fleet.phase(WAITING[0]) == "Queued"

        eventually("all jobs have succeeded", fleet.have_ended, DEADLINE_S)
        eventually("no job has pods", lambda: not bookings.holders())
    assert bookings.double == []
    assert bookings.peak == QUOTAS
    assert {member.name: fleet.attempt(member) for member in FLEET} == {
        member.name: 2 if member in FIRST else 1 for member in FLEET
    }
    for member in FLEET:
        assert fleet.says(member) == ("from its checkpoint" if member in FIRST else "from the beginning")
