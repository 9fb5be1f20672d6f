"""The ways to reward workers: a thread of this process, a Ray actor, a connection to a reward pod."""
