"""Network policies of a job: every pod may reach what its part needs, and nothing else; plain data, from the spec."""

from typing import Any, Final
from urllib.parse import urlsplit

from longshore.api import contract, names
from longshore.api.addresses import METADATA_NETWORKS_V4, METADATA_NETWORKS_V6, metadata_within
from longshore.api.environment import Egress
from longshore.api.names import Component
from longshore.api.reward import Reward
from longshore.api.rljob import RLJob
from longshore_operator.config import OperatorConfig
from longshore_operator.identity import Identity

Json = dict[str, Any]

_NODE_LOCAL_DNS: Final = "169.254.20.10/32"
"""Address at which NodeLocal DNSCache answers."""
_DNS: Final[Json] = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": _NODE_LOCAL_DNS}},
    ],
    "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
}
_ANY_POD: Final[Json] = {"namespaceSelector": {}}
_ANYWHERE: Final[list[Json]] = [
    # To some network plugins an address block holds no pods.
    _ANY_POD,
    # There clouds tell their machines credentials.
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(METADATA_NETWORKS_V4)}},
    {"ipBlock": {"cidr": "::/0", "except": list(METADATA_NETWORKS_V6)}},
]
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def network_policies(job: RLJob, config: OperatorConfig) -> list[Json]:
    """Return the policies of all pods of a job.

    Reward pods run code that models wrote. The coordinator connects to them, on one port; they connect to judges and to
    the services that rewards ask, and to nothing else. Environment pods run code that models steer. The coordinator
    connects to them in the same way; they connect to what their environment is granted. The coordinator alone downloads
    from the Hub, asks the endpoint of a teacher, and speaks to trackers. Metrics may be collected from anywhere in the
    cluster. The page of the job shows prompts and responses: it is for port-forward, which no policy sees, and for
    peers that the installation names.
    """
    identity, reward = Identity.of(job), job.spec.reward
    others = _trusted(identity)
    coordinator, rewards = _part(identity, Component.COORDINATOR), _part(identity, Component.REWARD)
    environments, to_act = _part(identity, Component.ENVIRONMENT), _tcp(contract.ENVIRONMENT_PORT)
    to_urls = _to_ports(url_ports(reward))
    to_hub = _to_ports([job.spec.hub.port] if job.spec.uses_hub else [])
    teacher = job.spec.algorithm.teacher_endpoint
    to_teacher = _to_ports([] if teacher is None else [_port(teacher.url)])
    to_trackers = _to_ports(job.spec.tracking.ports)
    to_score = _tcp(contract.REWARD_PORT)
    to_page = [{"from": list(config.page_peers), "ports": _tcp(contract.PAGE_PORT)}] if config.page_peers else []
    to_api_server = {"ports": _tcp(*config.api_server_ports)}
    policies = [
        _policy(identity.metadata(f"{identity.name}-pods"), others, [{"from": [others]}], [{"to": [others]}, _DNS]),
        _policy(
            identity.metadata(f"{identity.name}-coordinator", Component.COORDINATOR),
            coordinator,
            [{"from": [_ANY_POD], "ports": _tcp(contract.HEALTH_PORT)}, *to_page],
            [
                {"to": [rewards], "ports": to_score},
                *([{"to": [environments], "ports": to_act}] if job.spec.environments else ()),
                to_api_server,
                *to_hub,
                *to_teacher,
                *to_trackers,
                *(to_urls if reward.pods == 0 else ()),
            ],
        ),
    ]
    if reward.most_pods:
        judges, port = _part(identity, Component.JUDGE), _tcp(contract.JUDGE_PORT)
        to_judges = [{"to": [judges], "ports": port}] if reward.num_judge_pods else []
        policies.append(
            _policy(
                identity.metadata(f"{identity.name}-rewards", Component.REWARD),
                rewards,
                [{"from": [coordinator], "ports": to_score}],
                # Names are for URLs alone: judges have addresses.
                [*to_judges, *([_DNS, *to_urls] if to_urls else ())],
            )
        )
        if to_judges:
            metadata = identity.metadata(f"{identity.name}-judges", Component.JUDGE)
            policies.append(_policy(metadata, judges, [{"from": [rewards], "ports": port}], []))
    if job.spec.environments:
        metadata = identity.metadata(f"{identity.name}-environments", Component.ENVIRONMENT)
        policies.append(_policy(metadata, environments, [{"from": [coordinator], "ports": to_act}], []))
    for one in job.spec.environments:
        # Of its own, so that a pod without the label of its environment reaches nothing. One that grants nothing
        # replaces what was granted before the job was edited.
        to_server = _to_ports([] if one.url is None else [_port(one.url)])
        granted = [*map(_to_block, one.pods.egress), *to_server]
        metadata = identity.metadata(names.environment_policy(identity.name, one.name), Component.ENVIRONMENT)
        hosts = _part(identity, Component.ENVIRONMENT, {names.LABEL_ENVIRONMENT: one.name})
        policies.append(_policy(metadata, hosts, [], [_DNS, *granted] if granted else []))
    return policies


def url_ports(reward: Reward) -> list[int]:
    """Return the ports of the services that reward functions ask, each once."""
    urls = [function.http.url for function in reward.functions if function.http is not None]
    urls += [one.judge.url for one in reward.functions if one.judge is not None and one.judge.url is not None]
    return sorted({_port(url) for url in urls})


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def _to_ports(ports: list[int]) -> list[Json]:
    """Return a rule that names ports only, because a policy cannot name hosts."""
    return [{"to": _ANYWHERE, "ports": _tcp(*ports)}] if ports else []


def _to_block(egress: Egress) -> Json:
    closed = metadata_within(egress.cidr)
    block = {"cidr": egress.cidr, **({"except": closed} if closed else {})}
    return {"to": [{"ipBlock": block}], "ports": _tcp(*egress.ports)}


def _tcp(*ports: int) -> list[Json]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _part(identity: Identity, component: Component, more: dict[str, str] | None = None) -> Json:
    labels = {names.LABEL_JOB: identity.name, names.LABEL_COMPONENT: component.value, **(more or {})}
    return {"podSelector": {"matchLabels": labels}}


def _trusted(identity: Identity) -> Json:
    """Select the pods that run no code that models wrote or steer."""
    isolated = [Component.REWARD.value, Component.ENVIRONMENT.value]
    others = {"key": names.LABEL_COMPONENT, "operator": "NotIn", "values": isolated}
    return {"podSelector": {"matchLabels": {names.LABEL_JOB: identity.name}, "matchExpressions": [others]}}


def _policy(metadata: Json, pods: Json, ingress: list[Json], egress: list[Json]) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {**pods, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress},
    }
