"""Jobs from Python: `from longshore.client import submit`. Needs the extra `client`; the rest of the core does not."""

from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore_client.errors import ClientError
from longshore_client.job import Job, JobFailed, JobTimeout, fetch, get, list_jobs, submit, watch
from longshore_client.target import Target

__all__ = [
    "ClientError",
    "Job",
    "JobFailed",
    "JobTimeout",
    "RLJob",
    "RLJobSpec",
    "Target",
    "fetch",
    "get",
    "list_jobs",
    "submit",
    "watch",
]
