"""Quota of Kueue by our classes, with the mappings that the handbook has for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from tests.cluster.harness.schedulersite import Site, node, site, template
from tests.cluster.kueue.program import mapping, missing, running
from tests.cluster.kueue.workloads import (
    admitted,
    allocated,
    create_group,
    create_job,
    end,
    remove_all,
    waits,
)

RESOURCE = "nvidia.com/mig-1g.5gb"
MEMORY = "mig.dra.dev/memory"
CLAIM = {"slice": "mig-1g.5gb"}
QUOTA = 2
PLENTY = "100"


@pytest.fixture(scope="module")
def with_kueue(binaries: Binaries) -> Binaries:
    if reason := missing(binaries):
        pytest.skip(reason)
    return binaries


@pytest.fixture(scope="module")
def queued(with_kueue: Binaries, root: Path) -> Iterator[Site]:
    """A node whose seven slices the controller allocates, and a quota of two of them."""
    home = root / "kq"
    with site(with_kueue, home, {"ours": ("controller", 1)}, {}) as made:
        template(made.api, "mig-1g.5gb")
        quota = {"cpu": PLENTY, RESOURCE: str(QUOTA)}
        with running(made, with_kueue, home / "kueue", mapping(RESOURCE), quota):
            yield made


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "queued" in request.fixturenames:
        made: Site = request.getfixturevalue("queued")
        made.wait("end of all", lambda: remove_all(made.api))


def test_jobs_over_quota_wait_and_are_allocated_when_another_has_ended(queued: Site) -> None:
    api = queued.api
    names = {create_job(api, f"job-{n}", CLAIM) for n in range(QUOTA + 1)}
    queued.wait("Jobs within quota", lambda: len(admitted(api)) == QUOTA)
    (last,) = names - admitted(api)
    queued.wait("the reason", lambda: waits(api, last))
    queued.wait("slices", lambda: len(queued.devices("ours")) == QUOTA)
    assert len(admitted(api)) == QUOTA
    assert allocated(api, last) == []
    end(api, min(names - {last}))
    queued.wait("the last", lambda: last in admitted(api))
    queued.wait("its slice", lambda: len(allocated(api, last)) == 1)
    queued.assert_disjoint()


def test_limits_of_a_profile_have_the_same_quota(queued: Site) -> None:
    """Kueue reads the Job's template, before admission changes a pod: no mapping is asked for."""
    api = queued.api
    create_job(api, "by-limits", {}, limits={RESOURCE: "1"})
    queued.wait("the first", lambda: "by-limits" in admitted(api))
    create_job(api, "by-claim", CLAIM)
    queued.wait("the second", lambda: "by-claim" in admitted(api))
    create_job(api, "too-many", {}, limits={RESOURCE: "1"})
    queued.wait("the reason", lambda: waits(api, "too-many"))
    assert admitted(api) == {"by-limits", "by-claim"}


def test_a_group_of_pods_is_admitted_and_allocated_whole(queued: Site) -> None:
    api = queued.api
    large = create_group(api, "large", "mig-1g.5gb", pods=QUOTA + 1)
    queued.wait("the reason", lambda: waits(api, large[0]))
    small = create_group(api, "small", "mig-1g.5gb", pods=QUOTA)
    queued.wait("nodes", lambda: all(node(api, each) == "ours" for each in small))
    assert len(allocated(api, "small-")) == QUOTA
    assert allocated(api, "large-") == []
    queued.assert_disjoint()


def test_quota_by_memory_where_kube_scheduler_allocates(with_kueue: Binaries, root: Path) -> None:
    """Of 30Gi one slice of 3g.20gb takes most: Kueue reads the counters of ResourceSlices."""
    home = root / "km"
    with site(with_kueue, home, {"theirs": ("scheduler", 1)}, {}) as made:
        api = made.api
        made.wait("slices", lambda: made.published("theirs"))
        template(api, "mig-3g.20gb")
        quota = {"cpu": PLENTY, MEMORY: "30Gi"}
        with running(made, with_kueue, home / "kueue", mapping(MEMORY), quota):
            for name in ("first", "second"):
                create_job(api, name, {"slice": "mig-3g.20gb"})
                if name == "first":
                    made.wait("the first", lambda: "first" in admitted(api))
            made.wait("the reason", lambda: waits(api, "second"))
            made.wait("its slice", lambda: len(made.devices("theirs")) == 1)
            assert admitted(api) == {"first"}
