"""Longshore's core: the API and every decision, as pure code (pydantic and the standard library only)."""
