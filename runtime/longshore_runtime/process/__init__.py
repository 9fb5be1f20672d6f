"""What any process of a pod needs: logs, durable files, large imports, work that is repeated meanwhile."""
