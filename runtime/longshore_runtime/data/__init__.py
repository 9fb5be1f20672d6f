"""Prompts: read, checked, split and tokenised."""
