"""What the components of the embedded cluster share above the client: local copies, events and background work."""
