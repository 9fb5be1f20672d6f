"""`python -m longshore_cli`."""

from longshore_cli.main import app

app()
