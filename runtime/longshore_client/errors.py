"""What went wrong, in one sentence and a fix."""

from longshore_client.plain import plain


class ClientError(Exception):
    """An expected error: what is wrong (one sentence), and what to do about it.

    Functions and methods of `longshore.client` raise no other one for what they expect; `__cause__` is the error of the
    Kubernetes client, where there was one.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(plain(message))
        self.message = plain(message)
        self.fix = plain(fix)
