"""A headless Chromium, driven over its DevTools protocol: opens a page, looks at it and listens to its console."""

import asyncio
import base64
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRE_BROWSER: Final = "LONGSHORE_REQUIRE_BROWSER"
"""Variable that has tests fail where there is no browser, instead of being skipped."""
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get(REQUIRE_BROWSER), reason="there is no Chromium on this machine"
)
_TIMEOUT_S: Final = 120.0
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # Its sandbox needs rights that a container's root does not have.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Chromium:
    """A headless Chromium. Starting one costs more than most tests, so tests share it, each with a page of its own."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Browser] = {}

    async def listen(self) -> None:
        """Take what the browser sends, until it ends."""
        async for message in self._socket:
            reply = message.json()
            if "id" in reply:
                self._answers.pop(reply["id"]).set_result(reply)
            elif (page := self._pages.get(reply.get("sessionId", ""))) is not None:
                page.take(reply["method"], reply["params"])

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol; `session`: to a page instead of the browser."""
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(command | ({"sessionId": session} if session else {}))
        reply = await asyncio.wait_for(answer, _TIMEOUT_S)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        found: dict[str, Any] = reply["result"]
        return found

    @asynccontextmanager
    async def page(self) -> AsyncIterator["Browser"]:
        """Open an empty page that shares nothing with others; it is closed with the block."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        self._pages[session] = page = Browser(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        yield page
        del self._pages[session]
        await self.call("Target.disposeBrowserContext", browserContextId=context)


class Browser:
    """A page, and everything that it complained about."""

    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium = chromium
        self._session = session
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, and what the security policy blocked."""
        self.requests: list[str] = []
        """Addresses of everything that was asked for."""

    async def open(self, address: str) -> None:
        """Load a page and wait until it has shown itself."""
        await self.call("Page.navigate", url=address)
        await self.until("document.documentElement.getAttribute('data-ready') === 'true'")

    async def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        script = (
            f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 50); look() }})"
        )
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                # A page that is left takes its promises with it.
                with suppress(RuntimeError):
                    await self.evaluate(script)
                    return
                await asyncio.sleep(0.1)

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        reply = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"]))
        return reply["result"].get("value")

    async def resize(self, width: int, height: int, *, is_dark: bool, is_phone: bool = False, scale: float = 1) -> None:
        """Be a screen of this size and scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """What is seen, as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        return await self._chromium.call(method, self._session, **parameters)

    def take(self, method: str, params: dict[str, Any]) -> None:
        """Remember what the page says of itself."""
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([one.get("value") or one.get("description") for one in params["args"]]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"a dialog: {params['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start a browser with one empty page; it ends with the block."""
    async with chromium() as started, started.page() as page:
        yield page


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """Start a browser; it ends with the block."""
    assert CHROMIUM is not None, "there is no Chromium on this machine"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.PIPE
        )
        try:
            async with aiohttp.ClientSession() as client:
                address = await asyncio.wait_for(_address(process), _TIMEOUT_S)
                async with client.ws_connect(address, max_msg_size=0) as socket:
                    started = Chromium(socket)
                    listening = asyncio.create_task(started.listen())
                    yield started
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Where it listens, as it says on its standard error."""
    assert process.stderr is not None
    reply = []
    async for line in process.stderr:
        reply.append(line.decode(errors="replace"))
        if "DevTools listening on " in reply[-1]:
            return reply[-1].split("DevTools listening on ")[1].strip()
    raise RuntimeError(f"the browser did not start: {''.join(reply)}")
