"""Custom resources: their definitions, schemas, validation rules and printer columns."""
