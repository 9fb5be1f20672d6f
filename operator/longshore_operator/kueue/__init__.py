"""Jobs in queues of Kueue: a Workload speaks for each."""
