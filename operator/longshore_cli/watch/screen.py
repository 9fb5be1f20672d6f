"""Where a watch is shown: a live panel on a terminal, plain lines anywhere else."""

from collections.abc import Callable
from typing import Final, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from longshore_cli.watch import dashboard, text
from longshore_cli.watch.history import Line, WatchHistory
from longshore_client.view import EventView, newest_events

NUM_EVENTS: Final = 4
REFRESH_HZ: Final = 4.0


class Screen(Protocol):
    """Shows what a watch learns; entered while it does."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def job(self, history: WatchHistory, lines: tuple[Line, ...]) -> None:
        """Show a change of the job, which these lines describe."""

    def event(self, event: EventView) -> None:
        """Note that a Kubernetes event about the job came, or came again."""


def screen_for(console: Console, history: WatchHistory, clock: Callable[[], float]) -> Screen:
    """Return the screen that suits the console."""
    return LiveScreen(console, history, clock) if console.is_terminal else PlainScreen(console)


class LiveScreen:
    """A panel that stays at the bottom; finished rounds scroll by above it."""

    def __init__(self, console: Console, history: WatchHistory, clock: Callable[[], float]) -> None:
        self._history = history
        self._events: dict[str, EventView] = {}
        self._clock = clock
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=REFRESH_HZ)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def job(self, history: WatchHistory, lines: tuple[Line, ...]) -> None:
        self._history = history
        for line in lines:
            if (shown := dashboard.line(line)) is not None:
                self._live.console.print(shown)

    def event(self, event: EventView) -> None:
        self._events[event.uid] = event

    def _picture(self) -> RenderableType:
        # The refreshing thread draws while the watching thread stores: a copy keeps them apart.
        events = newest_events(tuple(self._events.copy().values()), NUM_EVENTS)
        return dashboard.dashboard(self._history, events, self._clock())


class PlainScreen:
    """One line for each finished step, notice and event, and for the progress of long steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[EventView] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def job(self, history: WatchHistory, lines: tuple[Line, ...]) -> None:
        for line in lines:
            self._write(text.line_text(line))

    def event(self, event: EventView) -> None:
        if event not in self._shown:
            self._shown.add(event)
            self._write(text.event_text(event))

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
