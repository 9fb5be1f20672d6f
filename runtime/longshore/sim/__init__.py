"""Discrete-event simulator: the policies of `longshore.policy`, on a virtual clock and on modelled hardware."""
