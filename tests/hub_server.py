"""A Hub on this machine: the part of its HTTP interface that `huggingface_hub` uses to download repositories.

Model and data set information, trees, and files with their ETag, commit and size headers, redirects of large files to
another path, and ranges. Faults are attributes that a test sets.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Json = dict[str, Any]

_LFS = (".safetensors", ".parquet")
_XET_TOKEN = "/xet-read-token"
_ROUTE = re.compile(
    r"/(?:api/(?P<kinds>models|datasets)/(?P<api_repo>[^/]+/[^/]+)(?:/(?P<verb>revision|tree)/(?P<api_rev>[^/?]+))?"
    r"|(?P<data>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<file>.+))"
)


@dataclass
class Repository:
    """Files by name at one commit."""

    files: dict[str, bytes]
    is_gated: bool = False

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name in sorted(self.files):
            digest.update(name.encode() + b"\0" + self.files[name])
        return digest.hexdigest()

    @classmethod
    def of(cls, directory: Path) -> "Repository":
        """Everything in a directory."""
        paths = [path for path in directory.rglob("*") if path.is_file()]
        return cls({str(path.relative_to(directory)): path.read_bytes() for path in paths})


@dataclass(frozen=True)
class RecordedRequest:
    """One request."""

    method: str
    path: str
    authorization: str | None
    first_byte: int


@dataclass
class HubServer:
    """What the Hub holds, what it was asked, and what is wrong with it."""

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    requests: list[RecordedRequest] = field(default_factory=list)
    token: str | None = None
    """Without it, gated repositories are closed."""
    cut_after_bytes: int | None = None
    """The next answer with a file ends after so many bytes."""
    damaged: dict[str, int] = field(default_factory=dict)
    """So many times a file comes with a wrong byte."""
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    """Sizes of files, where the listing says something else."""
    status: int | None = None
    """Every answer has it."""
    cdn_statuses: dict[str, list[int]] = field(default_factory=dict)
    """Answers by method with the content of a large file have one each, until none is left."""
    xet_address: str | None = None
    """Large files lie in a Xet storage there, and not in this server."""
    before_file: threading.Event = field(default_factory=threading.Event)
    """Files wait for it."""
    url: str = ""

    def __post_init__(self) -> None:
        self.before_file.set()

    def downloads(self, name: str) -> list[RecordedRequest]:
        """Requests for the content of a file."""
        return [one for one in self.requests if one.method == "GET" and one.path.endswith(f"/{name}")]


@contextmanager
def hub_server(host: str = "127.0.0.1") -> Iterator[HubServer]:
    """Serve while the block runs."""
    hub = HubServer()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.before_file.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: tests read `requests`."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        matched = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(matched[1]) if matched else 0
        self.hub.requests.append(RecordedRequest(self.command, path, self.headers.get("Authorization"), first))
        if self.hub.status is not None:
            return self._send(self.hub.status, b"the hub is ill")
        if path.startswith("/cdn/") and (statuses := self.hub.cdn_statuses.get(self.command)):
            return self._send(statuses.pop(0), b"no")
        if path.startswith("/cdn/"):
            kind, owner, name, _, file = path.removeprefix("/cdn/").split("/", 4)
            return self._send_file(getattr(self.hub, kind)[f"{owner}/{name}"], file, first, moved=True)
        if path.endswith(_XET_TOKEN):
            expires_s = str(int(time.time()) + 3600)
            headers = {"X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": expires_s}
            return self._send(200, b"", headers | {"X-Xet-Cas-Url": str(self.hub.xet_address)})
        route = _ROUTE.fullmatch(path)
        if route is None:
            return self._send(404, b"no such route")
        kinds = route["kinds"] or ("datasets" if route["data"] else "models")
        repository = getattr(self.hub, kinds).get(route["api_repo"] or route["repo"])
        if repository is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if (route["api_rev"] or route["rev"] or "main") not in ("main", repository.commit):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if route["file"]:
            if repository.is_gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
                return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            return self._send_file(repository, route["file"], first, kinds=kinds, name=route["repo"])
        return self._send(
            200, json.dumps(self._listed(repository, route)).encode(), {"Content-Type": "application/json"}
        )

    def _send_file(self, repository: Repository, file: str, first: int, *, moved: bool = False, kinds: str = "",
                   name: str = "") -> None:  # fmt: skip
        if file not in repository.files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        content = repository.files[file]
        headers = {
            "ETag": f'"{_etag(file, content)}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"
        }  # fmt: skip
        if file.endswith(_LFS) and self.hub.xet_address is not None:
            headers |= {"X-Xet-Hash": _etag(file, content), "X-Xet-Refresh-Route": self.hub.url + _XET_TOKEN}
        if file.endswith(_LFS) and not moved:
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers["ETag"]}
            place = f"/cdn/{kinds}/{name}/{repository.commit}/{file}?signature=s1gned"
            return self._send(302, b"", {**headers, "Location": place})
        if self.command == "GET":
            self.hub.before_file.wait()
            if self.hub.damaged.get(file, 0) > 0:
                self.hub.damaged[file] -= 1
                content = bytes([content[0] ^ 1]) + content[1:]
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self._send(206 if first else 200, content[first:], headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut_after_bytes
        if cut is not None and status in (200, 206) and len(body) > cut:
            self.hub.cut_after_bytes = None
            self.wfile.write(body[:cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)

    def _listed(self, repository: Repository, route: re.Match[str]) -> Json | list[Json]:
        if route["verb"] != "tree":
            return {
                "id": route["api_repo"], "sha": repository.commit, "private": False, "downloads": 0, "likes": 0,
                "tags": [], "siblings": [{"rfilename": name} for name in repository.files],
            }  # fmt: skip
        directories = {str(parent) for name in repository.files for parent in Path(name).parents} - {"."}
        return [
            *({"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(directories)),
            *(
                _entry(name, content, self.hub.claimed_bytes.get(name, len(content)))
                for name, content in repository.files.items()
            ),
        ]


def _entry(name: str, content: bytes, num_bytes: int) -> Json:
    entry = {"type": "file", "path": name, "size": num_bytes, "oid": _git_blob(content)}
    if name.endswith(_LFS):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": num_bytes, "pointerSize": 134}
    return entry


def _etag(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if name.endswith(_LFS) else _git_blob(content)


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
