"""The model and the rows of a job as files of its storage, wherever they come from."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.environment import Environment
from longshore.api.model import Data, Model, Source
from longshore.api.objectives.distillation import AT as TEACHER
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.checks.rows import fields_read
from longshore_runtime.data.reading import DataFile, Fields, Row, read_files, read_rows
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
    teacher: str | None = None
    """Directory of the teacher that trainers hold, relative to the storage, if there is one."""

    def rows(self, functions: Sequence[RewardFunction], environments: Sequence[Environment] = ()) -> list[Row]:
        """Return all rows, with the fields that are read, by data set; raises UserError for the first mistake."""
        each = [(source, fields_read(source, functions, environments)) for source in self.data.each]
        return [row for source, fields in each for row in self.rows_of(source, fields)]

    def rows_of(self, source: Source, fields: Fields = None) -> list[Row]:
        """Return all rows of a data set, which may be that of the warm start; raises UserError for a mistake."""
        if source.origin.path is not None:
            return read_rows(self.storage.resolve(source.origin.path), source, fields)
        found = self.downloaded[source.at]
        files = [DataFile(f"{source.origin.hub}/{name}", found.directory / name) for name in found.files]
        return read_files(files, source, fields)


def job_inputs(spec: RLJobSpec, storage: JobStorage, on_progress: OnProgress) -> JobInputs:
    """Download the models and the data that are not in the storage yet; raises UserError with the field to blame."""
    model, teacher = spec.model, spec.algorithm.teacher
    downloads = Downloads(storage.root, storage.output_dir, spec.hub, on_progress)
    downloaded = {one.at: downloads.fetch(one) for one in wanted(model, spec.data_sets, teacher)}
    taught_by = None
    if teacher is not None and teacher.endpoint is None:
        taught_by = teacher.path or storage.relative(downloaded[TEACHER].directory)
    if model.hub is None:
        return JobInputs(model, None, spec.data, downloaded, storage, taught_by)
    local = {"path": storage.relative(downloaded["model"].directory), "hub": None, "revision": None}
    return JobInputs(model.model_copy(update=local), model.hub, spec.data, downloaded, storage, taught_by)
