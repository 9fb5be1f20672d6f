"""Environments in reward pods, in real processes behind a real connection."""
