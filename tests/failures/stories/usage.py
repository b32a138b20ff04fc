"""What users and kubelet ask of a node, and what the program does by itself until it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import multiple, precondition, rule

from kubeletplugin.claims.node import ClaimAnswer
from kubeletplugin.journal.entries import LEAVING
from tests.failures.helpers.agreement import (
    check_claim,
    entries,
    instance_of,
    own_instances,
    slices_made,
)
from tests.failures.helpers.steps import KilledError
from tests.failures.stories.story import GPUS, SHAPES, Known, Story, claims

T = TypeVar("T")
_DEVICES = [
    f"gpu-{gpu}-mig-{label}-{start}"
    for gpu in range(GPUS)
    for label, (_, starts) in SHAPES.items()
    for start in starts
]

devices = st.lists(st.sampled_from(_DEVICES), min_size=1, max_size=3, unique=True)
kill_points = st.integers(1, 90)


class Usage(Story):
    """A kubelet and its users."""

    # -- users and kubelet

    @rule(target=claims, devices=devices)
    def create_claim(self, devices: list[str]) -> Known:
        return self._claim(f"claim-{len(self.known)}", devices)

    @precondition(lambda self: self.shares)
    @rule(target=claims, devices=devices)
    def two_pods_share_slices(self, devices: list[str]) -> Any:
        shares = [f"{device}-share" for device in devices]
        first, second = (self._claim(f"claim-{len(self.known)}", shares) for _ in range(2))
        self.prepare(first)
        outcome = self.plant.prepare(second.ref, within=self.within(second))
        if first.told and self.undisturbed:
            assert not outcome.error or "all 4 shares are in use" in outcome.error, outcome.error
        self._answered(second, outcome)
        return multiple(first, second)

    @precondition(lambda self: self.shares)
    @rule(target=claims, old=claims)
    def another_pod_shares_slices(self, old: Known) -> Known:
        """With a claim of shares, or one that has them alone, which it has to wait for."""
        shares = [f"{device.removesuffix('-share')}-share" for device in old.devices]
        claim = self._claim(f"claim-{len(self.known)}", shares)
        self.prepare(claim)
        return claim

    @rule(target=claims, old=claims, devices=devices)
    def create_claim_of_the_same_name(self, old: Known, devices: list[str]) -> Known:
        self.site.delete_claim(old.ref)
        old.live = False
        if any(k.live and k.ref.name == old.ref.name for k in self.known):
            return old
        return self._claim(old.ref.name, devices)

    @precondition(lambda self: self.binds_late)
    @rule(target=claims, devices=devices)
    def kube_scheduler_waits_for_slices(self, devices: list[str]) -> Known:
        """It binds the pod once they are made."""
        claim = self._claim(f"claim-{len(self.known)}", devices, awaited=True)
        self._make_ahead(claim)
        return claim

    def _claim(self, name: str, devices: Sequence[str], *, awaited: bool = False) -> Known:
        ref = self.site.claim(name, devices, awaited=awaited)
        claim = Known(ref, tuple(devices), awaited=awaited)
        self.known.append(claim)
        return claim

    @rule(claim=claims)
    def delete_claim(self, claim: Known) -> None:
        self.site.delete_claim(claim.ref)
        claim.live = False

    @precondition(lambda self: not self.api_down and not self.hung)
    @rule()
    def the_watch_tells_of_ends(self) -> None:
        """It does some time after claims have gone, and not while the API is away."""
        self.plant.watch_ends()

    @rule(claim=claims)
    def prepare(self, claim: Known) -> None:
        self._answered(claim, self.plant.prepare(claim.ref, within=self.within(claim)))

    @rule(claim=claims)
    def make_ahead(self, claim: Known) -> None:
        """Its pod is on its way here; kubelet has not asked for its slices."""
        self._make_ahead(claim)

    def _make_ahead(self, claim: Known) -> None:
        if claim.told:
            return
        claim.tried = True
        if claim.awaited and self.site.has_claim(claim.ref):
            life = self.recorder.life
            self.plant.watch(claim.ref, hung=self._hung_claims())
            self.plant.publish()
            if self.undisturbed and self.recorder.life == life:
                self._check_conditions(claim)
        else:
            self.plant.make_ahead(claim.ref, claim.devices, hung=self._hung_claims())

    def _check_conditions(self, claim: Known) -> None:
        """kube-scheduler is told that slices are made if all are, and of none otherwise."""
        with self.recorder.outside():
            known = [e for e in entries(self.site) if e.claim == claim.ref]
        made = {e.device for e in known if e.state not in LEAVING and e.ci_id is not None}
        expected = made if made == set(claim.devices) else set()
        assert slices_made(self.site, claim.ref) == expected

    def _hung_claims(self) -> set[str]:
        return {known.ref.uid for known in self.known if known.gpus() & self.hung}

    @precondition(lambda self: not self.hung)
    @rule()
    def no_pod_comes_for_a_long_time(self) -> None:
        """A claim that kube-scheduler waits for keeps its slice: it is reserved for the pod."""
        eager = self.plant.daemon.early
        self.plant.eager_round()  # it has seen what is there
        self.recorder.skipped += 2 * eager._seconds
        self.plant.eager_round()
        with self.recorder.outside():
            awaited = {known.ref.uid for known in self.known if known.awaited}
            ahead = [e for e in entries(self.site) if e.early and e.claim.uid not in awaited]
            assert not ahead or not self.well, f"nothing is wrong, and it is kept: {ahead}"

    @precondition(lambda self: self.idle_seconds and not self.hung)
    @rule()
    def nobody_comes_for_what_is_idle(self) -> None:
        self._collect()
        self.plant.tend()  # what was collected may be kept
        self.plant.tend()  # it has seen what is there
        self.recorder.skipped += 2 * self.idle_seconds
        self.plant.tend()
        with self.recorder.outside():
            idle = [e for e in entries(self.site) if e.idle]
            assert not idle or not self.well, f"nothing is wrong, and it is kept: {idle}"

    @rule()
    def kubelet_is_made_to_ask_again(self) -> None:
        """The controller has it ask for what failed and passes, or was cut short by a kill."""
        inventory = self.plant.inventory()
        if inventory is None:
            return
        failed = {f.claim.uid: f.passing for f in inventory.failed_claims}
        for claim in self.known:
            again = failed.get(claim.ref.uid, bool(inventory.resumed))
            if again and claim.live and claim.tried and not claim.told:
                self.prepare(claim)

    @rule(claim=claims)
    def prepare_twice(self, claim: Known) -> None:
        first = self.plant.prepare(claim.ref, within=self.within(claim))
        self._answered(claim, first)
        if not first.error and self.undisturbed:
            assert self.plant.prepare(claim.ref) == first, "a repeated call changes nothing"

    def _answered(self, claim: Known, outcome: ClaimAnswer) -> None:
        claim.tried = True
        if outcome.error:
            note(outcome.error)
            return
        assert {d.device for d in outcome.devices} == set(claim.devices)
        with self.recorder.outside():
            check_claim(self.site, claim.ref, claim.devices)
        claim.told = True
        claim.keys = {}
        for device in claim.devices:
            found = instance_of(self.site, device)
            assert found is not None
            claim.keys[device] = found[1].key

    @rule(claim=claims)
    def unprepare(self, claim: Known) -> None:
        # From the moment that kubelet asks, nothing is promised of the slices.
        claim.told = False
        outcome = self.plant.unprepare(claim.ref, within=self.within(claim))
        if outcome.error:
            note(outcome.error)
            claim.tried = True
            return
        claim.tried = False
        self._check_gone(claim)

    def _check_gone(self, claim: Known) -> None:
        """No spec; no slice either, but for those that are kept until they can be removed."""
        with self.recorder.outside():
            left = {e.device: e for e in entries(self.site) if e.claim.uid == claim.ref.uid}
            assert all(e.state in LEAVING for e in left.values()), left
            stuck = [e for e in left.values() if not e.idle]
            assert not stuck or not self.well, f"nothing is wrong, and it is left: {stuck}"
            present = {g.key for _, g in own_instances(self.site, self.foreign)}
            others = {e.device for e in entries(self.site) if e.share is not None}
            gone = {k for d, k in claim.keys.items() if d not in left and d not in others}
            assert not present & gone, "success, and the slice is there"
            assert not list(self.site.roots.cdi.glob(f"*{claim.ref.uid}*"))
        claim.keys = {}

    # -- the program's own rounds, and its end

    @precondition(lambda self: not self.hung)
    @rule()
    def look(self) -> None:
        self.plant.look()

    @precondition(lambda self: not self.hung)
    @rule()
    def tend(self) -> None:
        self._collect()
        self.plant.tend()

    def _collect(self) -> None:
        """Claims that are gone may be taken from the hardware from now on."""
        for claim in self.known:
            if not claim.live:
                claim.told = False

    @rule()
    def publish(self) -> None:
        self.plant.publish()

    @rule()
    def crash(self) -> None:
        self.restart()

    @rule(claim=claims, point=kill_points)
    def killed_in_prepare(self, claim: Known, point: int) -> None:
        within = self.within(claim)
        outcome = self._killed(point, lambda: self.plant.prepare(claim.ref, within=within))
        claim.tried = True
        if outcome is not None:
            self._answered(claim, outcome)
        self.restart()

    @rule(claim=claims, point=kill_points)
    def killed_while_it_is_made_ahead(self, claim: Known, point: int) -> None:
        self._killed(point, lambda: self._make_ahead(claim))
        self.restart()

    @rule(claim=claims, point=kill_points)
    def killed_in_unprepare(self, claim: Known, point: int) -> None:
        claim.told, claim.tried = False, True
        within = self.within(claim)
        self._killed(point, lambda: self.plant.unprepare(claim.ref, within=within))
        self.restart()

    @precondition(lambda self: not self.hung)
    @rule(point=kill_points)
    def killed_in_a_round(self, point: int) -> None:
        self._collect()
        self._killed(point, self.plant.tend)
        self.restart()

    @rule(point=kill_points)
    def killed_at_its_start(self, point: int) -> None:
        self.end()
        self._killed(point, self.new_plant)
        self.restart()

    def _killed(self, point: int, work: Callable[[], T]) -> T | None:
        """What it came to, or None if the process was killed at that step."""
        self.recorder.arm(kill_after=point)
        try:
            return work()
        except KilledError:
            return None
        finally:
            self.recorder.disarm()
