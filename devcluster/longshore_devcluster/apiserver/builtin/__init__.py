"""The built-in resources: their table, defaults, validation and printer columns."""
