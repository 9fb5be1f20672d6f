"""`longshore simulate`: predict the time of a job with every strategy, before it has a GPU."""
