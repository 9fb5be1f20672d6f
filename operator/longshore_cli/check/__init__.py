"""`longshore check`: what is wrong with a job, before anything is submitted. Needs no cluster and no GPU."""
