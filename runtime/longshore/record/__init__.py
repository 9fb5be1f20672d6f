"""What is kept of every round: who did what when, and what became of each response."""
