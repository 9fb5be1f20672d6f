"""The operator: observes an RLJob and its pods, decides with a pure `reconcile`, and applies the plan."""
