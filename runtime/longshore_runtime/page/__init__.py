"""The page of a job: read from its storage, served by the coordinator, or written as a report."""
