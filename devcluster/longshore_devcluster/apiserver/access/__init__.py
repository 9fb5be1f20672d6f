"""Who is asking, and may they: authentication, tokens and RBAC."""
