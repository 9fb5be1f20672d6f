"""Every decision of the papers as pure code: no I/O, no clock, no threads, no logging."""
