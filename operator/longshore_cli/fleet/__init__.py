"""All jobs at once: what runs, what waits, and where the GPUs are."""
