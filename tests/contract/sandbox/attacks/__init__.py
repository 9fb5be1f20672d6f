"""Programs that try to get out of the sandbox, each bounded by itself, so that a missing layer harms nobody."""

from typing import Final

from tests.contract.sandbox.attacks.asking import ASKING
from tests.contract.sandbox.attacks.attack import Attack
from tests.contract.sandbox.attacks.filling import FILLING
from tests.contract.sandbox.attacks.kernel import KERNEL
from tests.contract.sandbox.attacks.reaching import REACHING
from tests.contract.sandbox.attacks.staying import DAEMONS, ENDLESS

ATTACKS: Final = [*FILLING, *REACHING, *ASKING, *KERNEL]

__all__ = ["ATTACKS", "DAEMONS", "ENDLESS", "Attack"]
