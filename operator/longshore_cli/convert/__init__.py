"""`longshore convert`: configurations of verl and TRL as RLJobs, with a reason for every key that is left out."""
