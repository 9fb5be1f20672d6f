"""Names and labels of everything that belongs to a job: deterministic, so that any component can find it.

What sets objects apart stands at the end of a name, so that the end of a name says what the rest is. With a fixed
beginning, an object of one job could have the name of another's.
"""

from enum import StrEnum
from typing import Final, Literal

GROUP: Final = "longshore.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final[Literal["longshore.dev/v1alpha1"]] = "longshore.dev/v1alpha1"
KIND: Final[Literal["RLJob"]] = "RLJob"
PLURAL: Final = "rljobs"
SINGULAR: Final = "rljob"
SHORT_NAME: Final = "rlj"

MAX_JOB_NAME_LENGTH: Final = 45
"""Pod names add at most 17 characters and should stay valid host names (63)."""
JOB_NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A Service is named after the job: an RFC 1035 label, the only form before Kubernetes 1.34."""
JOB_NAME_LENGTH_RULE: Final = f"name must have at most {MAX_JOB_NAME_LENGTH} characters: pod names are made from it"
JOB_NAME_FORM_RULE: Final = (
    "name must begin with a letter, end with a letter or digit, and hold only lower-case letters, digits and '-': "
    "a Service is named after it"
)

LABEL_JOB: Final = "longshore.dev/job"
LABEL_COMPONENT: Final = "longshore.dev/component"
LABEL_INDEX: Final = "longshore.dev/index"
LABEL_ATTEMPT: Final = "longshore.dev/attempt"
LABEL_ROLE: Final = "longshore.dev/role"
LABEL_TP_SIZE: Final = "longshore.dev/tp-size"
LABEL_REWARD: Final = "longshore.dev/reward"
LABEL_ENVIRONMENT: Final = "longshore.dev/environment"
LABEL_PRIORITY_CLASS: Final = "longshore.dev/priority-class"
"""Label of an RLJob with its class in the operator's own admission."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "longshore"

OPERATOR_FIELD_MANAGER: Final = "longshore-operator"
COORDINATOR_FIELD_MANAGER: Final = "longshore-coordinator"


class Component(StrEnum):
    """Kinds of pods of a job."""

    COORDINATOR = "coordinator"
    WORKER = "worker"
    TRAINER = "trainer"
    REWARD = "reward"
    JUDGE = "judge"
    ENVIRONMENT = "environment"


class Role(StrEnum):
    """What a GPU pod does now."""

    ROLLOUT = "rollout"
    TRAINER = "trainer"


def coordinator_pod(job: str) -> str:
    """Return the name of the coordinator pod."""
    return f"{job}-coordinator"


def worker_pod(job: str, index: int) -> str:
    """Return the name of a GPU worker pod."""
    return f"{job}-worker-{index}"


def trainer_pod(job: str, index: int) -> str:
    """Return the name of a GPU pod that only trains (placement Disaggregated)."""
    return f"{job}-trainer-{index}"


def reward_pod(job: str, index: int) -> str:
    """Return the name of a reward pod."""
    return f"{job}-reward-{index}"


def judge_pod(job: str, index: int) -> str:
    """Return the name of a pod that serves a judge; `Reward.judge_pods` says which."""
    return f"{job}-judge-{index}"


def environment_pod(job: str, index: int) -> str:
    """Return the name of a pod of an environment; `environment_pods` says of which."""
    return f"{job}-environment-{index}"


def headless_service(job: str) -> str:
    """Return the name of the service over all pods of the job."""
    return f"{job}-pods"


def config_map(job: str) -> str:
    """Return the name of the ConfigMap with the job's configuration."""
    return f"{job}-config"


def modules_config_map(job: str, digest: str) -> str:
    """Name of a ConfigMap with Python files of the job; `digest`: eight characters that follow from its content."""
    return f"{job}-modules-{digest}"


def ray_token_secret(job: str, uid: str) -> str:
    """Return the name of the Secret with the tokens of the job: for its Ray cluster, and for its judges."""
    return f"{job}-ray-token-{_short(uid)}"


def reward_token_secret(job: str, uid: str) -> str:
    """Return the name of the Secret with the token of the job's reward pods, which know no other."""
    return f"{job}-reward-token-{_short(uid)}"


def environment_token_secret(job: str, environment: str, uid: str) -> str:
    """Return the name of the Secret with the token of the pods of one environment, which know no other."""
    return f"{_of_environment(job, environment)}-token-{_short(uid)}"


def environment_policy(job: str, environment: str) -> str:
    """Return the name of the NetworkPolicy with what the pods of one environment may connect to."""
    return _of_environment(job, environment)


def _of_environment(job: str, environment: str) -> str:
    """Join two names at a dot, which neither contains: `a-b` of job `x` is not `b` of job `x-a`."""
    return f"{job}.{environment}-environment"


def _short(uid: str) -> str:
    """Set the Secrets of a job apart from those of an earlier one of its name.

    The operator may create Secrets and not read them, so it could not see whose a Secret is.
    """
    return uid[:8]


def service_account(job: str) -> str:
    """Return the name of the coordinator's service account, role and role binding."""
    return f"{job}-coordinator"


def storage_claim(job: str) -> str:
    """Return the name of the claim that the operator creates for `spec.storage.create`."""
    return f"{job}-storage"


def workload(job: str) -> str:
    """Return the name of the Workload that speaks for the job in a queue of Kueue."""
    return f"{job}-rljob"


def pod_group(job: str) -> str:
    """Return the name of the PodGroup by which the scheduler starts the pods of the job together."""
    return f"{job}-rljob"


def default_output(job: str, uid: str) -> str:
    """Return the default of `spec.storage.output`, relative to the storage.

    A later job of that name gets another one.
    """
    return f"rljobs/{job}-{uid[:8]}"
