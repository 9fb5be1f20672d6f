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


class Browser:
    """A page, and everything that it complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._numbers = itertools.count(100)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, and what the security policy blocked."""
        self.requests: list[str] = []
        """Addresses of everything that was asked for."""

    async def listen(self) -> None:
        """Take what the browser says, until it ends."""
        async for message in self._socket:
            reply = message.json()
            if "id" in reply:
                self._answers.pop(reply["id"]).set_result(reply)
            else:
                self._take(reply["method"], reply["params"])

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
        """One command of the protocol."""
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        await self._socket.send_json(command)
        reply = await asyncio.wait_for(answer, _TIMEOUT_S)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        found: dict[str, Any] = reply["result"]
        return found

    def _take(self, method: str, params: dict[str, Any]) -> None:
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
    """A browser with one empty page; it ends with the block."""
    assert CHROMIUM is not None, "there is no Chromium on this machine"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.PIPE
        )
        try:
            async with aiohttp.ClientSession() as client:
                address = await asyncio.wait_for(_address(process), _TIMEOUT_S)
                async with client.ws_connect(address, max_msg_size=0) as socket:
                    page = Browser(socket, await _attached(socket))
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    yield page
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


async def _attached(socket: aiohttp.ClientWebSocketResponse) -> str:
    """A session with the first page."""
    await socket.send_json({"id": 1, "method": "Target.getTargets"})
    targets = (await socket.receive_json())["result"]["targetInfos"]
    page = next(target["targetId"] for target in targets if target["type"] == "page")
    attach = {"id": 2, "method": "Target.attachToTarget", "params": {"targetId": page, "flatten": True}}
    await socket.send_json(attach)
    while True:
        reply = await socket.receive_json()
        if reply.get("id") == 2:
            return str(reply["result"]["sessionId"])
