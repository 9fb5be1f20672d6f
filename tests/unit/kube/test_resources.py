"""Where objects are in the API: names lead nowhere else."""

import pytest

from longshore_kube.errors import ApiError
from longshore_kube.resources import CLAIMS, NODES


def test_objects_have_a_place_by_their_names() -> None:
    assert CLAIMS.path("team", "shared.models") == "/api/v1/namespaces/team/persistentvolumeclaims/shared.models"
    assert NODES.path("", "node-1", "status") == "/api/v1/nodes/node-1/status"
    assert CLAIMS.path(None) == "/api/v1/persistentvolumeclaims"


@pytest.mark.parametrize("name", [".", "..", "../secrets/of-another", "a/b", "a?watch=true", "a#b", "%2e%2e", "a\n/b"])
def test_there_is_nothing_by_a_name_that_leads_elsewhere(name: str) -> None:
    for namespace, last in (("team", name), (name, "shared")):
        with pytest.raises(ApiError, match="nothing can have this name") as caught:
            CLAIMS.path(namespace, last)
        assert caught.value.not_found
