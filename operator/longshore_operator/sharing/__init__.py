"""Jobs that take turns on the same GPUs: who is a member of a sharing group, and whose turn it is."""
