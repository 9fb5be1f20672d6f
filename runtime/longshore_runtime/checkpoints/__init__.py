"""What a run keeps on disk, and what it needs to continue from there."""
