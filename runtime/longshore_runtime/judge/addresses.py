"""Addresses of the servers of a judge pool.

Each server writes its own into a file of the job's storage, which every pod mounts. That works where names of pods do
not resolve, needs no rights in the cluster, and outlives neither attempt nor address.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from longshore_runtime.process.durable import write_whole

_DIRECTORY = "judges"


@dataclass(frozen=True)
class Address:
    """Address of one server of a pool."""

    url: str
    """URL as in `RemoteJudgeOptions.url`: up to /v1 for chats, or to /completions for a model without a template."""
    attempt: int
    """Attempt of the job that the server belongs to."""


def directory(output: Path, function: str) -> Path:
    """Return the directory in which the servers of a reward function publish addresses; `output`: that of the job."""
    return output / _DIRECTORY / function


def publish(directory: Path, replica: int, address: Address) -> None:
    """Write an address atomically, replacing an earlier one."""
    write_whole(_file(directory, replica), orjson.dumps(asdict(address)))


def was_published(directory: Path, replica: int) -> bool:
    """Return whether this replica, or one that it replaces, has ever served."""
    return _file(directory, replica).exists()


def known(directory: Path, num_replicas: int, attempt: int) -> dict[int, str]:
    """Return the URLs, by replica, of servers that serve in this attempt, or did before they were lost."""
    urls = {}
    for replica in range(num_replicas):
        try:
            address = Address(**orjson.loads(_file(directory, replica).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):  # The server that comes next writes it again.
            continue
        if address.attempt == attempt:
            urls[replica] = address.url
    return urls


def _file(directory: Path, replica: int) -> Path:
    return directory / f"{replica}.json"
