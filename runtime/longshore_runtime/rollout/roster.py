"""Which engines take requests, which stay out of a round, and which somebody still has to start anew."""

from collections.abc import Collection, Iterable


class Roster:
    """What the pool knows of its engines by their numbers; it does nothing, and knows no threads."""

    def __init__(self) -> None:
        self.serving: set[int] = set()
        """They have acknowledged the current weights."""
        self.receiving: set[int] = set()
        """They are being given the current weights."""
        self.is_quiet = False
        """While nobody serves, a loss is nobody's concern until `wake`."""
        self._retired: set[int] = set()
        self._owed: set[int] = set()

    def change_fleet(self) -> None:
        """Other engines take the place of all; they are about to be woken or started."""
        self.is_quiet = True
        self.serving, self._retired, self._owed = set(), set(), set()

    def receive(self, started: Iterable[int]) -> list[int]:
        """New weights: nobody has them yet, and those that have started and are in the round are about to get them."""
        self.serving = set()
        self.receiving = set(started) - self._retired
        return sorted(self.receiving)

    def retire(self, engines: Collection[int]) -> None:
        """They leave the round."""
        self._retired.update(engines)
        self.serving.difference_update(engines)

    def wake(self) -> list[int]:
        """All of them are in the round again; returns those that must be started anew for it."""
        self.is_quiet = False
        self._retired = set()
        return self.settle()

    def rests(self, engine: int) -> bool:
        """Whether it is out of the round."""
        return self.is_quiet or engine in self._retired

    def waits(self, engine: int) -> bool:
        """Whether it is in the round, without the current weights, and nobody is giving them to it."""
        return not self.rests(engine) and engine not in self.serving | self.receiving

    def is_retired(self, engine: int) -> bool:
        """Whether it has left the round for good."""
        return engine in self._retired

    def lose(self, engine: int) -> bool:
        """It is gone; whether the round has to know. If not, it is owed."""
        self.serving.discard(engine)
        if not self.rests(engine):
            return True
        self._owed.add(engine)
        return False

    def owe(self, engines: Iterable[int]) -> None:
        """They ended without anybody being told."""
        self._owed.update(engines)

    def settle(self) -> list[int]:
        """Engines that were owed, which are not any more."""
        owed, self._owed = sorted(self._owed), set()
        return owed
