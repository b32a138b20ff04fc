"""Writes for pods of gangs whose answers were lost: what they may have given stays theirs."""

from __future__ import annotations

from dra.common.resources import RESOURCE_CLAIMS
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.kube.errors import UnavailableError
from tests.controller.helpers.desk import STATUS, at_desk, settle, wants, watch
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import claim, pod, request
from tests.controller.serve.gangs.gangpods import create
from tests.controller.world.worldchecks import check_held_once


def test_what_a_lost_answer_may_have_given_to_a_gang_is_given_to_nobody_else() -> None:
    bench, desk = at_desk("node-a")
    body = pod("a-0", "x", "y")
    body["metadata"]["labels"] = {NAME_LABEL: "a", COUNT_LABEL: "2"}
    for name in ("x", "y"):
        bench.claim(claim(name, request("r", "mig-1g.5gb")))
    bench.pod(body)
    create(bench, "a", 1, size="2", profile="1g.5gb")
    bench.run()
    bench.api.lost = once(STATUS, UnavailableError("no answer"))
    desk.work_off()
    assert bench.devices("x"), "stored, but neither the answer nor the watch has told it"
    bench.run()
    create(bench, "a", 2, size="2", profile="1g.5gb")  # the gang is decided anew
    bench.run(seconds=1.0)
    for number in range(3):
        wants(bench, f"p-{number}", "1g.5gb")
    settle(bench, desk)
    watch(bench, "x")
    settle(bench, desk, seconds=1.0)
    objects = bench.api.objects.items()
    claims = [(n, o) for (kind, n), o in objects if kind == RESOURCE_CLAIMS.plural]
    check_held_once(claims)
    assert all(bench.devices(name) for name in ("x", "y", "a-1", "p-2"))
