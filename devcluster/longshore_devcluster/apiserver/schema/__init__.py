"""Types of the API as data."""
