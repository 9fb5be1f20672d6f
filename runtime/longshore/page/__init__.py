"""The page of a job: what it shows as pure data, and the document that shows it. No I/O but reading its own assets."""
