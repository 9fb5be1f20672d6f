"""Training: data-parallel replicas behind one handle."""
