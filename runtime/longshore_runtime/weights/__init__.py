"""Weights on their way from trainers to engines: in buckets, through Ray's object store or memory that both see."""
