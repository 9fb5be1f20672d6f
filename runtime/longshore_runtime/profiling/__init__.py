"""Offline profiling (RollPacker, section 4.1): what engines, trainers and judges of a job cost on its own pods."""
