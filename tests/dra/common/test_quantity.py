"""Quantities and versions are read exactly as Kubernetes reads them."""

from __future__ import annotations

import signal
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.cel.data import SemverError, parse_semver
from dra.common.cache import Index
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.runtimes import doubt, refusal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 << 29),
        ("12Gi", 12 << 30),
        ("4864Mi", 4864 << 20),
        ("1E", 10**18),
        ("1E3", 1000),
        ("2e3", 2000),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+3k", 3000),
        ("-3M", -3_000_000),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("1Ei", 1 << 60),
        (8, 8),
        (0.5, Fraction(1, 2)),
    ],
)
def test_a_quantity_is_its_number(text: str | float, number: Fraction | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "Gi", "1gi", "1 Gi", "1.2.3", "0x10", "1ki", "e3", "--1", "1e", "\u0661", "1Gi\n"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="no quantity"):
        parse_quantity(text)


def test_versions_are_ordered_by_the_rules_of_semver() -> None:
    rising = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    rising += ["1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "10.0.0"]
    orders = [parse_semver(text).order() for text in rising]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("text", ["1", "1.2", "v1.2.3", "01.2.3", "1.2.3-01", "1.2.3.4", ""])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SemverError):
        parse_semver(text)


@pytest.mark.parametrize(
    ("text", "version"), [("v1.2", "1.2.0"), ("1", "1.0.0"), ("01.02.3", "1.2.3")]
)
def test_a_lenient_reading_completes_a_version(text: str, version: str) -> None:
    assert parse_semver(text, normalize=True) == parse_semver(version)


# -- index of members by key: the same as a table of sets, whatever is added and taken away


CHANGES = st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 3))


@given(st.lists(CHANGES, max_size=12))
def test_it_holds_what_a_table_of_sets_would_hold(changes: list[tuple[bool, str, int]]) -> None:
    index: Index[str, int] = Index()
    table: dict[str, set[int]] = {"a": set(), "b": set()}
    for added, key, member in changes:
        (index.add if added else index.discard)(key, member)
        (table[key].add if added else table[key].discard)(member)
        assert {key: sorted(index.of(key)) for key in table} == {
            key: sorted(members) for key, members in table.items()
        }
        held = {key: members for key, members in table.items() if members}
        assert {key: set(members) for key, members in index.items()} == held
        assert len(index) == len(held)
        alone = [key for key, members in held.items() if len(members) == 1]
        assert not any(isinstance(index.of(key), set) for key in alone), "a set for one member"


# -- container runtimes that would start containers without their device are refused


NEEDS = {"0.5.0": (), "0.7.0": ("containerd://1.7.2", "containerd://1.7.15", "cri-o://1.29.13")}
"""By CDI version of the specs, the runtimes that read others, and not these."""


NEVER = {
    "docker://28.3.1": "let kubelet use containerd or CRI-O",
    "containerd://1.6.36": "reads no CDI; upgrade containerd to 1.7.",
    "containerd://1.7.1": "reads no CDI; upgrade containerd to 1.7.",
    "cri-o://1.27.8": "reads no CDI; upgrade cri-o to 1.",
}


READ = (
    *("containerd://1.7.16", "containerd://1.7.27-k3s1", "containerd://v2.0.0", "cri-o://1.30.0"),
    *("containerd://2.1.4+unknown", "containerd://2.3", "cri-o://1.36.0-dev", "cri-o://2.0.0"),
)


UNKNOWN = ("", "simulated://1", "remote", "runtime://1.0", "containerd://main", "cri-o", "://")


@pytest.mark.parametrize("needs", NEEDS)
def test_a_runtime_is_refused_by_what_its_version_reads(needs: str) -> None:
    for runtime, remedy in NEVER.items():
        assert remedy in refusal(runtime, needs=needs)
    for runtime in NEEDS["0.7.0"]:
        assert bool(refusal(runtime, needs=needs)) is (runtime in NEEDS[needs])
    for runtime in (*READ, *UNKNOWN):
        assert refusal(runtime, needs=needs) == ""


def test_what_is_to_be_configured_is_said_of_containerd_before_2() -> None:
    assert "enable_cdi = true" in doubt("containerd://1.7.27")
    for runtime in ("containerd://2.0.0", "cri-o://1.31.0", "docker://28.0.0", *UNKNOWN):
        assert doubt(runtime) == ""


# -- a signal ends a program whatever its main thread is at


PROGRAM = """
import os, signal, sys, threading
from dra.common.program import stop_on_signals

ended, lock = threading.Event(), threading.Lock()

def stop():
    with lock:
        ended.set()

stop_on_signals(stop)
with lock:
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(10_000):
        pass
ended.wait()
print("ended in order")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_main_thread_may_hold_the_lock_that_the_end_takes(number: signal.Signals) -> None:
    """As ``Event.wait`` holds that of its event for a moment."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr
