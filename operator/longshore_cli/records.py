"""Records of rounds, fetched from the storage of a job."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore.record import model
from longshore.record.model import RoundRecord
from longshore_cli.errors import CliError
from longshore_cli.options import PROFILE_FILE
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.transfer import copy
from longshore_client.transfer.archive import FileSelection

_RANGE: Final = re.compile(r"(?P<first>\d{0,9})((?P<colon>:)(?P<last>\d{0,9}))?", re.ASCII)
_MATCH: Final = f"{model.PREFIX}*{model.SUFFIX}"


@dataclass(frozen=True)
class Rounds:
    """Which ones: from `first` to `last`, both included, or the newest ones."""

    first: int | None = None
    last: int | None = None
    newest: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Rounds":
        """Parse `3:7`, `3:`, `:7` or `3`.

        Raises:
            CliError: it is none of these.
        """
        found = _RANGE.fullmatch(text)
        if found is None or not (found["first"] or found["last"]):
            raise CliError(f"--rounds: {text!r} is no range of rounds.", "Give one such as 3:7, 3:, :7 or 3.")
        first = int(found["first"]) if found["first"] else None
        last = int(found["last"]) if found["last"] else None
        if not found["colon"]:
            return cls(first, first)
        if first is not None and last is not None and first > last:
            raise CliError(f"--rounds: {text!r} ends before it begins.", f"Turn it round: {last}:{first}.")
        return cls(first, last)

    def choice(self, directory: str = "") -> FileSelection:
        """Return a selection of the files of these rounds below `directory`."""
        choice = FileSelection(match=f"{directory}{_MATCH}")
        if self.first is not None:
            choice["first"] = f"{directory}{model.file_name(self.first)}"
        if self.last is not None:
            choice["last"] = f"{directory}{model.file_name(self.last)}"
        if self.newest is not None:
            choice["newest"] = self.newest
        return choice


@dataclass(frozen=True)
class Recorded:
    """What was fetched of a job."""

    records: tuple[RoundRecord, ...]
    profile: str | None = None
    """The job's own profile, as JSON; None: it has none, or none was requested."""


def fetch(kube: Kube, job: str, rounds: Rounds, *, with_profile: bool = False, image: str | None = None) -> Recorded:
    """Return the records of a job, in the order of its rounds.

    Raises:
        CliError: there is no such job, or it has no such record.
    """
    output = jobs.output_path(kube.job(job))
    choices = [rounds.choice(f"{model.DIRECTORY}/")] + ([FileSelection(match=PROFILE_FILE)] if with_profile else [])
    with tempfile.TemporaryDirectory(prefix="longshore-") as directory:
        target = Path(directory) / "output"
        copy.fetch(kube, jobs.claim_of(kube, job, image), output, target, force=False, choices=choices)
        profile = target / PROFILE_FILE
        records = read(target / model.DIRECTORY)
        if not records:
            raise CliError(f"The RLJob {job!r} has recorded no round.", "Its first record comes after its first step.")
        return Recorded(tuple(records), profile.read_text(encoding="utf-8") if profile.is_file() else None)


def read(directory: Path) -> Sequence[RoundRecord]:
    """Return all records of a directory.

    Raises:
        CliError: a file is none.
    """
    if not directory.is_dir():
        return []
    found = []
    for path in directory.iterdir():
        if model.step_of(path.name) is None:
            continue
        try:
            found.append(RoundRecord.from_bytes(path.read_bytes()))
        except ValueError as error:
            raise CliError(f"{path.name}: {' '.join(str(error).split())}") from error
    return sorted(found, key=lambda record: record.step)
