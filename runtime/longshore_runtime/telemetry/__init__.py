"""What the outside sees of a run: metrics, the ledger of draws, and RLJob.status.runtime."""
