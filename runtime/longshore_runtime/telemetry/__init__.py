"""What a run reports: metrics, the ledger of draws, records, and RLJob.status.runtime."""
