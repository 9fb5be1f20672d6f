"""Records of rounds: what engines and trainers did and when, and the outcome of each response."""
