"""The controllers that every API server needs: garbage collection, namespaces, aggregation of roles."""
