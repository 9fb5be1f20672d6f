"""Import it last in a process that is forked: a collection in a fork would copy every page that both share."""

import gc

gc.collect()
gc.freeze()
