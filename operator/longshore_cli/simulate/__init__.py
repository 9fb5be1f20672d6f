"""`longshore simulate`: what a job would take under every strategy, before it has a GPU."""
