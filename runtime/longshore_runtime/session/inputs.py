"""The model and the rows of a job as files of its storage, wherever they come from."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.environment import Environment
from longshore.api.hub import Hub
from longshore.api.model import Data, Model
from longshore.api.reward import RewardFunction
from longshore.checks.rows import fields_read
from longshore_runtime.data.reading import DataFile, Row, read_files, read_rows
from longshore_runtime.hub.download import Downloaded, Downloads, OnProgress, wanted
from longshore_runtime.storage import JobStorage


@dataclass(frozen=True)
class JobInputs:
    """Model and data of a job, after downloads from the Hub."""

    model: Model
    """The model, with a path in place of a repository."""
    repository: str | None
    """The repository that the model is from."""
    data: Data
    downloaded: dict[str, Downloaded]
    """Downloaded repositories by the field that names them."""
    storage: JobStorage

    def rows(self, functions: Sequence[RewardFunction], environments: Sequence[Environment] = ()) -> list[Row]:
        """Return all rows, with the fields that are read, by data set; raises UserError for the first mistake."""
        rows: list[Row] = []
        for source in self.data.each:
            fields = fields_read(source, functions, environments)
            if source.origin.path is not None:
                rows += read_rows(self.storage.resolve(source.origin.path), source, fields)
            else:
                found = self.downloaded[source.at]
                files = [DataFile(f"{source.origin.hub}/{name}", found.directory / name) for name in found.files]
                rows += read_files(files, source, fields)
        return rows


def job_inputs(model: Model, data: Data, hub: Hub, storage: JobStorage, on_progress: OnProgress) -> JobInputs:
    """Download the model and the data that are not in the storage yet; raises UserError with the field to blame."""
    downloads = Downloads(storage.root, storage.output_dir, hub, on_progress)
    downloaded = {one.at: downloads.fetch(one) for one in wanted(model, data)}
    if model.hub is None:
        return JobInputs(model, None, data, downloaded, storage)
    local = {"path": storage.relative(downloaded["model"].directory), "hub": None, "revision": None}
    return JobInputs(model.model_copy(update=local), model.hub, data, downloaded, storage)
