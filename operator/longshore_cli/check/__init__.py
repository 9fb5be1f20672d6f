"""`longshore check`: find mistakes in a job before it is submitted. Needs no cluster and no GPU."""
