"""Content negotiation: which representation an Accept header asks for."""

from dataclasses import dataclass

from longshore_devcluster.apiserver.errors import ApiError


@dataclass(frozen=True, slots=True)
class Representation:
    """``transform`` is empty, ``Table``, ``PartialObjectMetadata`` or ``PartialObjectMetadataList``."""

    yaml: bool = False
    transform: str = ""
    transform_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Clause:
    media: str
    parameters: dict[str, str]
    quality: float


def parse_accept(header: str) -> list[Clause]:
    clauses = []
    for part in filter(None, (p.strip() for p in header.split(","))):
        media, *rest = (p.strip() for p in part.split(";"))
        parameters = dict(p.split("=", 1) for p in rest if "=" in p)
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        clauses.append(Clause(media.lower(), parameters, quality))
    return sorted(clauses, key=lambda clause: -clause.quality)


def negotiate(header: str, *, custom: bool = False) -> Representation:
    """Return the first clause that can be served. Raises 406 where there is none."""
    if not header:
        return Representation()
    for clause in parse_accept(header):
        if clause.media not in ("application/json", "application/yaml", "*/*", "application/*"):
            continue
        as_type = clause.parameters.get("as", "")
        version = clause.parameters.get("v", "v1")
        if as_type:
            known = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
            if as_type not in known or version not in ("v1", "v1beta1"):
                continue
            if clause.parameters.get("g", "meta.k8s.io") != "meta.k8s.io":
                continue
        return Representation(clause.media == "application/yaml", as_type, version)
    available = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    if custom:
        raise ApiError(406, "NotAcceptable", f"only the following media types are accepted: {available}")
    message = f"406: Not Acceptable\n\nAvailable representations: {available}"
    raise ApiError(406, "NotAcceptable", message, {})
