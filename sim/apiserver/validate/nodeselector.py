"""Rules of node selectors: terms, their expressions and field matches."""

from __future__ import annotations

from dra.common.resources import Obj
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import Cause, forbidden, invalid, required


def check_node_selector(selector: Obj, path: str) -> list[Cause]:
    """Checks every term of a node selector."""
    terms = selector.get("nodeSelectorTerms", [])
    inside = f"{path}.nodeSelectorTerms"
    if not terms:
        return [required(inside, "must have at least one node selector term")]
    causes = []
    for index, term in enumerate(terms):
        here = f"{inside}[{index}]"
        for number, requirement in enumerate(term.get("matchExpressions", [])):
            causes += _check_expression(requirement, f"{here}.matchExpressions[{number}]")
        for number, requirement in enumerate(term.get("matchFields", [])):
            causes += _check_field(requirement, f"{here}.matchFields[{number}]")
    return causes


def _check_expression(requirement: Obj, path: str) -> list[Cause]:
    causes = []
    operator, values = requirement.get("operator", ""), requirement.get("values", [])
    if operator in ("In", "NotIn"):
        if not values:
            text = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(required(f"{path}.values", text))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(forbidden(f"{path}.values", text))
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            causes.append(required(f"{path}.values", text))
    else:
        causes.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    key = requirement.get("key", "")
    if complaint := names.qualified_name(key):
        causes.append(invalid(f"{path}.key", key, complaint))
    causes += [
        invalid(f"{path}.values[{index}]", value, complaint)
        for index, value in enumerate(values)
        if (complaint := names.label_value(value))
    ]
    return causes


def _check_field(requirement: Obj, path: str) -> list[Cause]:
    causes = []
    operator, values = requirement.get("operator", ""), requirement.get("values", [])
    if operator not in ("In", "NotIn"):
        causes.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        causes.append(required(f"{path}.values", text))
    key = requirement.get("key", "")
    if key != "metadata.name":
        return [*causes, invalid(f"{path}.key", key, "not a valid field selector key")]
    return causes + [
        invalid(f"{path}.values[{index}]", value, complaint)
        for index, value in enumerate(values)
        if (complaint := names.dns_subdomain(value))
    ]
