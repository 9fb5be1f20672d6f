"""One step of a job: rollout, rewards, updates, publication, record; and the loop over all steps."""
