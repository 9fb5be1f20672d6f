"""Jobs in queues of Kueue, each represented by a Workload."""
