"""Episodes: what happens to a response between its turns, in environments that run in pods of their own."""
