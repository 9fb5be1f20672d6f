"""Reports of a run: metrics, the ledger of draws, records, and RLJob.status.runtime."""
