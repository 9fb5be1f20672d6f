"""Compare what the simulator says of a paper's own cluster with what the paper printed."""

from typing import Any

import yaml

from longshore.sim.paper.comparison import compare
from longshore.sim.paper.published import PUBLISHED_FILE, Paper, Published


def simulated(paper: Paper, *sections: str) -> dict[str, Any]:
    """Return the figures of these sections, by name; takes a minute or two."""
    published = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8")))
    return {
        row.figure + (f" ({row.variant})" if row.variant else ""): {
            "source": row.source,
            "published": row.published,
            "simulated": row.predicted,
        }
        for row in compare(paper, published).rows
        if row.figure.startswith(tuple(f"{paper}/{section}" for section in sections))
    }
