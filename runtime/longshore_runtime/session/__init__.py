"""One session of a job: its parts are built, the loop runs, and everything ends."""
