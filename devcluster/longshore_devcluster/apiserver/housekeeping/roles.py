"""Aggregated cluster roles: their rules are those of the roles that their selectors match."""

from longshore_devcluster.apiserver.access.rbac import CLUSTER_ROLES
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.selectors import matches_labels
from longshore_devcluster.apiserver.store import Record, copied
from longshore_devcluster.client.selectors import from_object


def aggregated_rules(role: Object, others: list[Record]) -> list[Object]:
    """Return the union of the matching roles' rules, in the roles' order, without repetition."""
    selectors = [from_object(s) for s in role["aggregationRule"].get("clusterRoleSelectors") or ()]
    rules: list[Object] = []
    for other in others:
        if other.obj["metadata"]["name"] == role["metadata"]["name"]:
            continue
        if any(selector is not None and matches_labels(selector, other.obj) for selector in selectors):
            rules += [rule for rule in other.obj.get("rules") or () if rule not in rules]
    return rules


def aggregate_roles(objects: Objects) -> None:
    """Bring every aggregated role up to date."""
    records = objects.store.items(CLUSTER_ROLES)
    for record in records:
        if record.obj.get("aggregationRule"):
            rules = aggregated_rules(record.obj, records)
            if rules != (record.obj.get("rules") or []):
                objects.store.put(record.key, {**copied(record.obj), "rules": rules})
