"""A package that programs may ask for."""

answer = 42
