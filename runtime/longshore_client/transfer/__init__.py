"""Files in and out of a job's storage claim, through a helper pod that lives as long as the copy."""
