"""The RLJob API: models, generated CRD, names and labels, and what the operator promises to pods."""
