"""Pods as Ray nodes."""
