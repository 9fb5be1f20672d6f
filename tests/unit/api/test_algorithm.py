"""Rules over fields of the algorithm: the same from the API server and from Python."""

from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.algorithm import Algorithm
from longshore.api.crd import rljob_crd
from longshore_devcluster.apiserver.crd.cel import RuleSet
from longshore_devcluster.apiserver.crd.structural import structural

VALID: dict[str, Any] = {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64}
SCHEMA = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


@pytest.mark.parametrize(
    ("fields", "broken"),
    [
        ({"clipLow": 0.3, "clipHigh": 0.2}, "clipHigh"),
        ({"overlongBufferTokens": 65}, "overlongBufferTokens"),
        ({"name": "GSPO", "importanceSampling": "Truncated"}, "importanceSampling"),
        ({"name": "GRPO", "importanceSampling": "Truncated"}, None),
        ({"name": "GSPO", "clipLow": 3e-4, "clipHigh": 4e-4}, None),
        ({"name": "DAPO", "clipHigh": 0.28, "overlongBufferTokens": 64, "dynamicSampling": True}, None),
    ],
)
def test_python_and_the_api_server_refuse_the_same(fields: dict[str, Any], broken: str | None) -> None:
    try:
        Algorithm.model_validate(VALID | fields)
        from_python = ""
    except ValidationError as error:
        from_python = error.errors()[0]["msg"]
    defaults = {name: node["default"] for name, node in SCHEMA["algorithm"]["properties"].items() if "default" in node}
    errors = RuleSet(structural(SCHEMA["algorithm"])).errors(defaults | VALID | fields, None)
    assert (f"{broken}:" in from_python, len(errors)) == ((True, 1) if broken else (False, 0))
    assert all(broken and broken in str(error) for error in errors)
