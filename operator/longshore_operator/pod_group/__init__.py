"""Pods that a scheduler starts together or not at all, by a PodGroup."""
