"""The page of a job: read from its storage, served beside its metrics or written as a report."""
