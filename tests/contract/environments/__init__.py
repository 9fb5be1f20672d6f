"""Environments in pods, in real processes behind a real connection."""
