"""One request on its way through the server."""

from dataclasses import dataclass

from aiohttp import web

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.request import RequestInfo
from longshore_devcluster.apiserver.resources import Resource

MAX_BODY_BYTES = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One request about one resource."""

    http: web.Request
    info: RequestInfo
    resource: Resource
    query: dict[str, str]

    @property
    def agent(self) -> str:
        return self.http.headers.get("User-Agent", "")

    @property
    def content_type(self) -> str:
        return self.http.headers.get("Content-Type", "")

    async def body(self) -> bytes:
        length = self.http.content_length
        data = b"" if length is not None and length > MAX_BODY_BYTES else await self.http.content.read(-1)
        if (length or 0) > MAX_BODY_BYTES or len(data) > MAX_BODY_BYTES:
            message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            raise ApiError(413, "RequestEntityTooLarge", message)
        return data
