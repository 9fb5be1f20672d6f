"""The page of a job on this machine: `longshore ui` serves it, `longshore report` writes it into a file."""
