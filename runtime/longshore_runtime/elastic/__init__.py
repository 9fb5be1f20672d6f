"""Elastic GPUs: assignments of the operator, and pods that go from rollout to training within a round."""
