"""Command line of Longshore: `longshore`, and `kubectl rljob` when called as a kubectl plugin."""
