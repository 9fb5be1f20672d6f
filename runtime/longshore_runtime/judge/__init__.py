"""A language model that judges responses: what it is asked, how its reply is read, and where it runs."""
