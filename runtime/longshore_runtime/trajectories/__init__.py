"""Trajectories, which engines sample and trainers train on."""
