"""Which pods of a job may reach what: as a network plugin would read the policies."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from longshore.api import contract, names
from longshore.api.names import Component
from longshore_operator.config import OperatorConfig
from longshore_operator.network import network_policies
from tests.unit.operator.model import SPEC, make_job

Json = dict[str, Any]

CONFIG = OperatorConfig("runtime:1", api_server_ports=(6443,))
PARTS = list(Component)
SERVICE = {"name": "service", "kind": "HTTP", "http": {"url": "http://grader.example/score"}}
SECURE = {"name": "secure", "kind": "HTTP", "http": {"url": "https://[2001:db8::1]/score"}}
REMOTE = {"name": "critic", "kind": "Judge", "judge": {"placement": "Remote", "url": "http://u:p@judge.svc:8000/v1"}}
POOL = {"name": "pool", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "a", "pool": {}}}


WORLD = {"name": "world", "kind": "Python", "importPath": "games:Guess"}


def policies(*functions: Json, egress: tuple[Json, ...] = (), **reward: Any) -> list[Json]:
    """Policies of a job with an environment, and with these reward functions besides one that asks nobody."""
    functions = ({"name": "task", "kind": "Task"}, *functions)
    world = WORLD | {"pods": {"egress": list(egress)}}
    rewards = {"pods": 1, "functions": list(functions), **reward}
    return network_policies(make_job(reward=rewards, environments=[world]), CONFIG)


def selects(selector: Json, part: Component, world: str = WORLD["name"]) -> bool:
    """Whether a pod selector takes the pods of a part of the job, or of this environment of it."""
    labels = {names.LABEL_JOB: "demo", names.LABEL_COMPONENT: part.value}
    if part is Component.ENVIRONMENT:
        labels[names.LABEL_ENVIRONMENT] = world
    assert selector["matchLabels"][names.LABEL_JOB] == "demo", "pods of other jobs are strangers"
    excluded = selector.get("matchExpressions", ())
    assert all(one["operator"] == "NotIn" for one in excluded)
    return selector["matchLabels"].items() <= labels.items() and not any(
        labels[one["key"]] in one["values"] for one in excluded
    )


def rules(made: list[Json], part: Component, direction: str) -> list[Json]:
    """All rules for a part: a pod may do what any of the policies that select it allows."""
    selecting = [policy["spec"] for policy in made if selects(policy["spec"]["podSelector"], part)]
    assert selecting, f"{part} is open to all"
    assert all(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in selecting)
    return [rule for spec in selecting for rule in spec[direction]]


def ports(rule: Json) -> set[Any]:
    return {port["port"] for port in rule.get("ports", [{"port": "any"}])}


def peers(made: list[Json], part: Component) -> dict[str, set[Any]]:
    """Ports at which a part reaches others of its job: both ends have to allow it."""
    reached: dict[str, set[Any]] = {}
    for other in PARTS:
        out = _allowed(rules(made, part, "egress"), "to", other)
        into = _allowed(rules(made, other, "ingress"), "from", part)
        common = out if "any" in into else into if "any" in out else out & into
        if common:
            reached[other.value] = common
    return reached


def _allowed(found: list[Json], key: str, part: Component) -> set[Any]:
    own = [
        rule
        for rule in found
        for peer in rule.get(key, ())
        if set(peer) == {"podSelector"} and selects(peer["podSelector"], part)
    ]
    return set().union(*map(ports, own))


def outside(made: list[Json], part: Component) -> list[Json]:
    """Egress of a part to what is no pod of the job."""
    return [
        rule for rule in rules(made, part, "egress") if not all(set(p) == {"podSelector"} for p in rule.get("to", [{}]))
    ]


def to_anywhere(made: list[Json], part: Component) -> set[Any]:
    """Ports at which a part reaches every address."""
    wide = [rule for rule in outside(made, part) if {"namespaceSelector": {}} in rule.get("to", [])]
    return set().union(*map(ports, wide))


def test_reward_pods_connect_to_nobody_and_the_coordinator_to_one_port_of_theirs() -> None:
    made = policies()
    assert peers(made, Component.REWARD) == {}
    assert peers(made, Component.COORDINATOR)["reward"] == {contract.REWARD_PORT}
    assert peers(made, Component.COORDINATOR).keys() == {part.value for part in PARTS}
    assert not {Component.REWARD.value, Component.ENVIRONMENT.value} & peers(made, Component.WORKER).keys()
    assert peers(made, Component.WORKER).keys() == peers(made, Component.TRAINER).keys() >= {"worker", "trainer"}


def test_environments_reach_nothing_and_the_coordinator_one_port_of_theirs() -> None:
    made = policies(SERVICE, POOL)
    assert rules(made, Component.ENVIRONMENT, "egress") == []
    (into,) = rules(made, Component.ENVIRONMENT, "ingress")
    assert ports(into) == peers(made, Component.COORDINATOR)["environment"] == {contract.ENVIRONMENT_PORT}


def test_an_environment_reaches_what_it_is_granted_and_others_do_not() -> None:
    made = policies(egress=({"cidr": "203.0.113.0/24", "ports": [443, 8443]}, {"cidr": "0.0.0.0/0", "ports": [80]}))
    dns, service, wide = rules(made, Component.ENVIRONMENT, "egress")
    assert (ports(dns), ports(service), ports(wide)) == ({53}, {443, 8443}, {80})
    assert service["to"] == [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    (block,) = [peer["ipBlock"] for peer in wide["to"]]
    for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"):
        assert any(ip_address(address) in ip_network(closed) for closed in block["except"]), address
    granting = [one for one in made if one["metadata"]["name"] == "demo.world-environment"]
    selector = granting[0]["spec"]["podSelector"]
    assert not selects(selector, Component.ENVIRONMENT, "other") and not selects(selector, Component.REWARD)


@pytest.mark.parametrize(
    ("cidr", "closed"),
    [
        ("::ffff:0.0.0.0/96", {}),
        ("fd00::/16", {"except": ["fd00:ec2::/32", "fd00:42::42/128"]}),
    ],
)
def test_an_environment_reaches_blocks_of_ipv6_however_they_are_written(cidr: str, closed: Json) -> None:
    _, granted = rules(policies(egress=({"cidr": cidr, "ports": [443]},)), Component.ENVIRONMENT, "egress")
    assert granted["to"] == [{"ipBlock": {"cidr": cidr, **closed}}]


@pytest.mark.parametrize(
    ("cidr", "prefix"), [("::/0", "64:ff9b::"), ("64:ff9b::/96", "64:ff9b::"), ("64:ff9b:1:5::/96", "64:ff9b:1:5::")]
)
def test_a_granted_block_leaves_out_what_is_translated_to_metadata_services(cidr: str, prefix: str) -> None:
    _, granted = rules(policies(egress=({"cidr": cidr, "ports": [443]},)), Component.ENVIRONMENT, "egress")
    (block,) = [peer["ipBlock"] for peer in granted["to"]]
    closed = [ip_network(one) for one in block["except"]]
    assert all(one.subnet_of(ip_network(cidr)) and one != ip_network(cidr) for one in closed)
    for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"):
        assert any(ip_address(f"{prefix}{address}") in one for one in closed), address
    assert not any(ip_address("64:ff9b::203.0.113.7") in one for one in closed)
    assert cidr != "::/0" or any(ip_address(f"64:ff9b:1:5::{address}") in one for one in closed)


def test_a_block_within_translated_addresses_has_no_exceptions_beyond_it() -> None:
    cidr = "64:ff9b:1:5::203.0.113.0/120"
    _, granted = rules(policies(egress=({"cidr": cidr, "ports": [443]},)), Component.ENVIRONMENT, "egress")
    assert granted["to"] == [{"ipBlock": {"cidr": cidr}}]


def test_an_environment_whose_pods_run_its_server_reaches_nothing_else() -> None:
    served = {"name": WORLD["name"], "kind": "OpenEnv", "server": {"image": "game:1"}}
    made = network_policies(make_job(environments=[served]), CONFIG)
    assert rules(made, Component.ENVIRONMENT, "egress") == []
    (into,) = rules(made, Component.ENVIRONMENT, "ingress")
    assert ports(into) == {contract.ENVIRONMENT_PORT}


def test_environment_reaches_the_port_of_its_server_and_others_do_not() -> None:
    served = {"name": WORLD["name"], "kind": "OpenEnv", "url": "http://games:8000"}
    made = network_policies(make_job(environments=[served]), CONFIG)
    assert to_anywhere(made, Component.ENVIRONMENT) == {8000}
    assert all(8000 not in to_anywhere(made, part) for part in PARTS if part is not Component.ENVIRONMENT)
    (granting,) = [one for one in made if one["metadata"]["name"] == "demo.world-environment"]
    assert not selects(granting["spec"]["podSelector"], Component.ENVIRONMENT, "other")


def test_metrics_are_collected_from_anywhere_and_nothing_else_is() -> None:
    made = policies()
    into = {
        part: [rule for rule in rules(made, part, "ingress") if {"namespaceSelector": {}} in rule["from"]]
        for part in PARTS
    }
    assert {part: [ports(rule) for rule in found] for part, found in into.items() if found} == {
        Component.COORDINATOR: [{contract.HEALTH_PORT}]
    }


def test_the_page_is_for_those_whom_the_installation_names() -> None:
    portal = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "portal"}}}
    job = make_job(reward={"pods": 1, "functions": [{"name": "task", "kind": "Task"}]})
    into = {}
    for peers_ in ((), (portal,)):
        made = network_policies(job, OperatorConfig("runtime:1", page_peers=peers_))
        into[bool(peers_)] = [
            rule["from"] for rule in rules(made, Component.COORDINATOR, "ingress") if contract.PAGE_PORT in ports(rule)
        ]
    assert into == {False: [], True: [[portal]]}


def test_reward_pods_ask_judges_that_have_pods_at_their_port() -> None:
    assert peers(policies(POOL), Component.REWARD) == {"judge": {8000}}


@pytest.mark.parametrize(
    ("reward", "scores", "does_not"),
    [
        ({"pods": 2}, [Component.REWARD], [Component.COORDINATOR]),
        ({"pods": 0}, [Component.COORDINATOR], []),
        ({"pods": 0, "maxPods": 2}, [Component.COORDINATOR, Component.REWARD], []),
    ],
)
def test_the_pods_that_score_reach_the_ports_of_the_urls_and_no_others(
    reward: Json, scores: list[Component], does_not: list[Component]
) -> None:
    made = policies(SERVICE, SECURE, REMOTE, POOL, **reward)
    assert all(to_anywhere(made, part) == {80, 443, 8000} for part in scores)
    others = [*does_not, Component.WORKER, Component.TRAINER, Component.JUDGE, Component.ENVIRONMENT]
    assert all(to_anywhere(made, part) == set() for part in others)


def test_reward_pods_ask_name_servers_for_the_hosts_of_urls_alone() -> None:
    assert outside(policies(POOL), Component.REWARD) == []
    dns, wide = outside(policies(SERVICE), Component.REWARD)
    assert (ports(dns), ports(wide)) == ({53}, {80})


@pytest.mark.parametrize("part", [part for part in PARTS if part not in (Component.REWARD, Component.ENVIRONMENT)])
def test_without_urls_pods_reach_only_name_servers_and_coordinators_the_api_server(part: Component) -> None:
    *others, dns = sorted(outside(policies(POOL), part), key=lambda rule: "to" in rule)
    assert ports(dns) == {53}
    assert [set(peer) for peer in dns["to"]] == [{"namespaceSelector", "podSelector"}, {"ipBlock"}]
    assert [ports(rule) for rule in others] == ([{6443}] if part is Component.COORDINATOR else [])


def test_no_url_opens_the_addresses_of_machine_metadata() -> None:
    (wide,) = [rule for rule in outside(policies(SERVICE), Component.REWARD) if ports(rule) == {80}]
    (four,) = [p["ipBlock"] for p in wide["to"] if p.get("ipBlock", {}).get("cidr") == "0.0.0.0/0"]
    (six,) = [p["ipBlock"] for p in wide["to"] if p.get("ipBlock", {}).get("cidr") == "::/0"]
    for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"):
        assert any(ip_address(address) in ip_network(closed) for closed in four["except"]), address
    for address in (
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fe80::a9fe:a9fe",
        "fd20:ce::254",
        "fd00:42::42",
        "64:ff9b::a9fe:a9fe",
    ):
        assert any(ip_address(address) in ip_network(closed) for closed in six["except"]), address


def test_a_job_that_never_has_reward_pods_has_no_policy_for_them() -> None:
    def named(**reward: Any) -> list[str]:
        functions = {"functions": [{"name": "task", "kind": "Task"}, POOL]}
        made = network_policies(make_job(reward=functions | reward), CONFIG)
        return [policy["metadata"]["name"] for policy in made]

    assert named(pods=0) == ["demo-pods", "demo-coordinator"]
    assert named() == [*named(pods=0), "demo-rewards", "demo-judges"]


@pytest.mark.parametrize(
    ("hub", "port"), [({}, 443), ({"endpoint": "http://mirror.example:8080"}, 8080), ({"endpoint": "http://a/x"}, 80)]
)
def test_the_coordinator_alone_reaches_the_hub_and_only_if_the_job_downloads(hub: Json, port: int) -> None:
    data = {"sources": [{"name": "a", "hub": "openai/gsm8k"}]}
    maths = {"functions": [{"name": "maths", "kind": "Maths"}]}
    made = network_policies(make_job(hub=hub, data=data, reward=maths, environments=[WORLD]), CONFIG)
    assert {part for part in PARTS if part is not Component.JUDGE and port in to_anywhere(made, part)} == {
        Component.COORDINATOR
    }
    without = network_policies(make_job(hub=hub), CONFIG)
    assert to_anywhere(without, Component.COORDINATOR) == set()


def test_the_coordinator_alone_reaches_the_endpoint_of_a_teacher() -> None:
    teacher = {"endpoint": {"url": "http://teacher:8000/v1", "modelName": "large"}}
    algorithm = SPEC["algorithm"] | {"objective": {"name": "Distillation", "teacher": teacher}}
    made = network_policies(make_job(algorithm=algorithm, environments=[WORLD]), CONFIG)
    assert {part for part in PARTS if 8000 in to_anywhere(made, part)} == {Component.COORDINATOR}


def test_the_coordinator_alone_reaches_the_trackers_that_the_job_names() -> None:
    tracking = {
        "wandb": {"tokenSecret": {"name": "wandb"}},
        "mlflow": {"address": "http://mlflow:5000"},
        "openTelemetry": {"endpoint": "http://collector:4318"},
    }
    made = network_policies(make_job(tracking=tracking), CONFIG)
    assert to_anywhere(made, Component.COORDINATOR) == {443, 5000, 4318}
    assert to_anywhere(made, Component.WORKER) == to_anywhere(made, Component.TRAINER) == set()
    offline = network_policies(make_job(tracking={"wandb": {"mode": "Offline"}}), CONFIG)
    assert to_anywhere(offline, Component.COORDINATOR) == set()
