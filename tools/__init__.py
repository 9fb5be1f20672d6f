"""Programs that renew pictures, tables and predictions of the docs; run as `python -m tools.NAME`."""
