"""What the operator promises to the pods, and what pods report with their exit code.

Every path reaches a program through an environment variable; programs never assume where a volume is mounted.
"""

from enum import IntEnum
from typing import Final

ENV_JOB_NAME: Final = "LONGSHORE_JOB_NAME"
ENV_JOB_NAMESPACE: Final = "LONGSHORE_JOB_NAMESPACE"
ENV_JOB_UID: Final = "LONGSHORE_JOB_UID"
ENV_ATTEMPT: Final = "LONGSHORE_ATTEMPT"
"""Attempt of the coordinator that this pod belongs to (from 1)."""
ENV_COMPONENT: Final = "LONGSHORE_COMPONENT"
ENV_INDEX: Final = "LONGSHORE_INDEX"
"""Index of a pod among those of its component (all but the coordinator)."""
ENV_POD_NAME: Final = "LONGSHORE_POD_NAME"
ENV_POD_IP: Final = "LONGSHORE_POD_IP"
ENV_COORDINATOR_ADDRESS: Final = "LONGSHORE_COORDINATOR_ADDRESS"
"""IP address of the coordinator pod of this attempt (all other pods)."""
ENV_CONFIG: Final = "LONGSHORE_CONFIG"
"""File with the job's spec as JSON, all defaults applied (all but environment pods)."""
ENV_STORAGE: Final = "LONGSHORE_STORAGE"
"""Directory where `spec.storage` is mounted (all but environment pods)."""
ENV_TERMINATION_LOG: Final = "LONGSHORE_TERMINATION_LOG"
"""File for the one sentence that says why a pod ended."""
ENV_GRACE: Final = "LONGSHORE_GRACE_SECONDS"
"""Seconds from the request to stop until the pod is killed (coordinator only)."""
ENV_PAGE_OPEN: Final = "LONGSHORE_PAGE_OPEN"
"""Set: the page of the job listens at the address of the pod as well (coordinator only)."""
ENV_REWARD_TOKENS: Final = "LONGSHORE_REWARD_TOKENS"
"""Directory with one file per reward function that has a `tokenSecret` or a judge pool (pods that score only)."""
ENV_REWARD_TOKEN: Final = "LONGSHORE_REWARD_TOKEN"
"""File with the bearer token that the job's reward pods ask for (coordinator and reward pods)."""
ENV_ENVIRONMENT: Final = "LONGSHORE_ENVIRONMENT"
"""File with the environment that a pod hosts as JSON, all defaults applied (environment pods only)."""
ENV_ENVIRONMENT_TOKEN: Final = "LONGSHORE_ENVIRONMENT_TOKEN"
"""File with the bearer token that the pods of the environment ask for (environment pods)."""
ENV_ENVIRONMENT_TOKENS: Final = "LONGSHORE_ENVIRONMENT_TOKENS"
"""Directory with one file per environment that holds the token of its pods (coordinator only)."""
ENV_JUDGE_TOKEN: Final = "LONGSHORE_JUDGE_TOKEN"
"""File with the bearer token that the job's judges ask for (judge pods only)."""
ENV_HUB_TOKEN: Final = "LONGSHORE_HUB_TOKEN"
"""File with the token of `spec.hub.tokenSecret` (coordinator only)."""
ENV_TEACHER_TOKEN: Final = "LONGSHORE_TEACHER_TOKEN"
"""File with the token of `spec.algorithm.objective.teacher.endpoint.tokenSecret` (coordinator only)."""
ENV_TRACKING_TOKENS: Final = "LONGSHORE_TRACKING_TOKENS"
"""Directory with one file per tracker of `spec.tracking` that has a `tokenSecret` (coordinator only)."""
ENV_MODULES: Final = "LONGSHORE_MODULES"
"""Directory with the Python files of `spec.modules` (pods that use them only)."""
ENV_RAY_AUTH_MODE: Final = "RAY_AUTH_MODE"
ENV_RAY_TOKEN_PATH: Final = "RAY_AUTH_TOKEN_PATH"

POD_USER: Final = 1000
"""User and group of the images of Longshore."""
USERS_ASSIGNED: Final = "assigned"
"""Said in place of a user: the cluster gives pods theirs, as OpenShift does."""
CONTAINER: Final = "longshore"
SERVER_CONTAINER: Final = "server"
"""Container with the OpenEnv server of an environment pod."""
CONFIG_KEY: Final = "spec.json"
ENVIRONMENT_FILE: Final = "environment.json"
RAY_TOKEN_KEY: Final = "token"
JUDGE_TOKEN_KEY: Final = "judge-token"
REWARD_TOKEN_KEY: Final = "token"
ENVIRONMENT_TOKEN_KEY: Final = "token"
HUB_TOKEN_KEY: Final = "token"
TEACHER_TOKEN_KEY: Final = "token"

STORAGE_MOUNT: Final = "/mnt/longshore/storage"
CONFIG_MOUNT: Final = "/etc/longshore"
RAY_TOKEN_MOUNT: Final = "/var/run/longshore/ray"
JUDGE_TOKEN_MOUNT: Final = "/var/run/longshore/judge"
REWARD_TOKEN_MOUNT: Final = "/var/run/longshore/reward"
REWARD_TOKENS_MOUNT: Final = "/var/run/longshore/rewards"
ENVIRONMENT_TOKEN_MOUNT: Final = "/var/run/longshore/environment"
ENVIRONMENT_TOKENS_MOUNT: Final = "/var/run/longshore/environments"
HUB_TOKEN_MOUNT: Final = "/var/run/longshore/hub"
TEACHER_TOKEN_MOUNT: Final = "/var/run/longshore/teacher"
TRACKING_TOKENS_MOUNT: Final = "/var/run/longshore/tracking"
MODULES_MOUNT: Final = "/etc/longshore-modules"
TERMINATION_LOG: Final = "/dev/termination-log"

RAY_PORT: Final = 6379
"""The Ray head listens here, on the coordinator pod's address."""
HEALTH_PORT: Final = 8080
"""`/readyz` and `/metrics` of the coordinator; `/readyz` of workers."""
PAGE_PORT: Final = 8088
"""The page of a job, in its coordinator; for port-forward, and for those whom the installation lets in."""
JUDGE_PORT: Final = 8000
"""`/health` and the OpenAI-compatible interface of judge pods."""
REWARD_PORT: Final = 8001
"""`/health` of reward pods, and what the coordinator asks them (`rewards.transports.pod_protocol`)."""
ENVIRONMENT_PORT: Final = 8002
"""`/health` of environment pods, and what the coordinator asks them (`environments.pod_protocol`)."""


COORDINATOR_GRACE_S: Final = 120
"""Grace period of a coordinator whose template names none: time for a last checkpoint."""


class ExitCode(IntEnum):
    """How a coordinator ends; every other code is a crash, which is retried up to backoffLimit."""

    SUCCEEDED = 0
    USER_ERROR = 64
    """A mistake in the job that no retry mends; the termination message names the field and the fix."""
    CANNOT_CONTINUE = 65
    """A mistake that keeps a job from going on from its checkpoint, as after an edit: suspended until it is gone."""
    INTERRUPTED = 75
    """Stopped on request (SIGTERM) or by a lost pod, state saved: start again, not counted as a failure."""
