"""Everything that can happen to a node, in any order, with what must hold after each of it."""

from __future__ import annotations

import json
import shutil
from typing import Any

from hypothesis.stateful import invariant, precondition, rule

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, InstanceState
from kubeletplugin.journal.entries import Entry
from sim.nvml.state import GpuInstance
from tests.failures.helpers.agreement import (
    check_foreign,
    check_settled,
    entries,
    own_instances,
    slices_made,
)
from tests.failures.helpers.plant import WITHIN_SECONDS
from tests.failures.helpers.steps import full_disk
from tests.failures.stories.mishaps import Mishaps
from tests.failures.stories.story import Counter, Known, place


class AnyOrder(Mishaps):
    """A node with three GPUs, a kubelet, users, an administrator and bad luck."""

    # -- what must hold

    @invariant()
    def counted(self) -> None:
        Counter.steps += 1

    @invariant()
    def no_foreign_instance_is_touched(self) -> None:
        check_foreign(self.site, self.foreign)

    @invariant()
    def every_instance_of_ours_is_in_the_journal(self) -> None:
        if self.hung:
            return
        with self.recorder.outside():
            journal = {(e.gpu, e.profile_id, e.placement) for e in entries(self.site)}
            for gpu, gi in own_instances(self.site, self.foreign):
                assert (gpu.uuid, gi.profile, Placement(gi.start, gi.size)) in journal, (
                    f"{gi} on {gpu.uuid} is in no journal"
                )

    @invariant()
    def what_kubelet_was_told_is_there(self) -> None:
        with self.recorder.outside():
            present = {g.key: g for _, g in own_instances(self.site, self.foreign)}
            journal = {e.key: e for e in entries(self.site)}
            for claim in self.known:
                if not claim.told:
                    continue
                for device in claim.devices:
                    assert (claim.ref.uid, device) in journal, f"{device} of {claim.ref} forgotten"
                for device, key in claim.keys.items():
                    assert key in present, f"{device} of {claim.ref} was destroyed"
                    assert present[key].compute_instances, f"{device} has no compute instance"
                if len(claim.keys) == len(claim.devices) and not self.specs_lost:
                    spec = f"*claim_{claim.ref.uid}.yaml"
                    assert list(self.site.roots.cdi.glob(spec)), f"no CDI spec of {claim.ref}"

    @invariant()
    def no_two_claims_overlap(self) -> None:
        held = [(c, d, *place(d)) for c in self.known if c.told for d in c.devices]
        for index, (claim, device, gpu, placement) in enumerate(held):
            for other, other_device, other_gpu, other_placement in held[:index]:
                share = device == other_device and device.endswith("-share")
                assert share or gpu != other_gpu or not placement.overlaps(other_placement), (
                    f"{claim.ref} and {other.ref} hold the same memory slices of GPU {gpu}"
                )

    @invariant()
    def who_shares_a_slice_was_told_of_the_same(self) -> None:
        told: dict[str, set[int]] = {}
        for claim in self.known:
            for device, key in claim.keys.items() if claim.told else ():
                told.setdefault(device, set()).add(key)
        assert all(len(keys) == 1 for keys in told.values()), told

    @invariant()
    def mig_mode_is_as_it_was(self) -> None:
        assert all(g.mig and g.mig_pending for g in self.machine.state().gpus)

    @precondition(lambda self: self.undisturbed)
    @rule()
    def what_is_published_is_what_is_there(self) -> None:
        self.plant.look()
        self.plant.look()
        inventory = self.plant.inventory()
        assert inventory is not None
        by_uuid = {g.uuid: g for g in inventory.gpus}
        for gpu in self.machine.state().gpus:
            shown = by_uuid[gpu.uuid]
            for gi in gpu.gpu_instances:
                place = Placement(gi.start, gi.size)
                here = [i for i in shown.instances if i.placement == place]
                idle = [i for i in shown.idle if i.placement == place]
                # One that was lost is told of beside what somebody has put in its place.
                present = [i for i in here if i.state is not InstanceState.LOST]
                once = len(present) + len(idle) == 1
                shared = not idle and {e.claim for e in self._sharing(gpu.uuid, gi)}
                assert once or shared == {i.claim for i in present}, (
                    f"{gi} is published as {here} and {idle}"
                )
                is_foreign = any(i.state is InstanceState.FOREIGN for i in present)
                assert is_foreign == (gi.key in self.foreign), f"{gi} is published as {here}"

    def _sharing(self, gpu: str, gi: GpuInstance) -> list[Entry]:
        """Entries of shares of a slice, but not of one that was lost and made again for others."""
        uuids = {ci.uuid for ci in gi.compute_instances} or {""}
        with self.recorder.outside():
            known = [e for e in entries(self.site) if e.share is not None and e.gpu == gpu]
        place = Placement(gi.start, gi.size)
        return [e for e in known if e.placement == place and e.mig_uuid in uuids]

    # -- when the faults stop

    @rule()
    def everything_settles(self) -> None:
        self._faults_stop()
        for _ in range(2):
            self.plant.look()
            self.plant.eager_round()  # what has waited for this is begun at once
            self._collect()
            self.plant.tend()
            self.plant.publish()
        left: dict[ClaimRef, tuple[str, ...]] = {}
        for claim in self.known:
            if claim.live and claim.told:
                self._keep_or_end(claim)
            elif claim.tried and claim.live:
                self._end(claim)
            elif claim.tried:
                self._check_gone(claim)
                claim.tried = False
            if claim.told:
                left[claim.ref] = claim.devices
        self._removed_at_last()
        self._kube_scheduler_is_told()
        self.plant.give_up_idle()
        self.plant.publish()
        with self.recorder.outside():
            check_settled(self.site, left, self.foreign)

    def _removed_at_last(self) -> None:
        """The first destroy of a GPU was answered with an error where the GSP keeps the place."""
        for _ in range(2 if self.variants.gsp_keeps else 0):
            self.plant.tend()

    def _kube_scheduler_is_told(self) -> None:
        """Of claims that it waits for, it is told of slices that are there, and of no others."""
        for claim in self.known:
            if not (claim.awaited and self.site.has_claim(claim.ref)):
                continue
            if not claim.told:
                self.site.unreserve(claim.ref)
            for _ in range(2):  # what is written is watched too
                self.plant.watch(claim.ref)
                self.plant.publish()
            expected = set(claim.devices) if claim.told else set()
            assert slices_made(self.site, claim.ref) == expected
            self.site.use(claim.ref)
        self.plant.watch_ends()

    def _keep_or_end(self, claim: Known) -> None:
        """Kubelet asks again, as after its restart; what somebody else sits on now has to go."""
        whole = len(claim.keys) == len(claim.devices)
        outcome = self.plant.prepare(claim.ref)
        self._answered(claim, outcome)
        if outcome.error:
            assert not whole, f"whole, and refused: {outcome.error}"
            assert "did not make" in outcome.error, outcome.error
            self._end(claim)

    def _end(self, claim: Known) -> None:
        """The pod goes: kubelet unprepares, once."""
        self.unprepare(claim)
        assert not claim.tried, "nothing is wrong, and it cannot be unprepared"

    def _faults_stop(self) -> None:
        self.disk_has_room()
        self.api_comes()
        self.nvml_is_well()
        self.release_hung()
        assert self.plant.daemon.node.tasks.wait_idle(WITHIN_SECONDS)
        self.processes_end()
        self.specs_lost = False

    def teardown(self) -> None:
        try:
            self.everything_settles()
            self._rests()
            for index, claim in enumerate(self.known):
                if index % 2 and claim.told:
                    self._end(claim)
                else:
                    self.delete_claim(claim)
            self._collect()
            self.plant.tend()
            self._removed_at_last()
            self.plant.give_up_idle()
            with self.recorder.outside():
                check_settled(self.site, {}, self.foreign)
        finally:
            self.recorder.refuse = full_disk()
            self.release_hung()
            self.recorder.die()
            self._hooks.__exit__(None, None, None)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _rests(self) -> None:
        """At rest nothing is written anywhere, over a restart too, but when kubelet registered."""
        self.restart()
        self.plant.publish()
        before = self._traces()
        for _ in range(2):
            self.plant.look()
            self.plant.tend()
            self.plant.publish()
            after = self._traces()
            changed = {
                k: (before.get(k), after.get(k))
                for k in before | after
                if before.get(k) != after.get(k)
            }
            assert not changed, f"written although nothing happens: {changed}"
            self.restart()

    def _traces(self) -> dict[str, Any]:
        roots = self.site.roots
        files = [
            *roots.cdi.glob("*"),
            *roots.state.glob("*.json*"),
            *(self.site.root / "api").rglob("object.json"),
        ]
        found = {str(p): (p.stat().st_ino, p.stat().st_mtime_ns, p.read_text()) for p in files}
        for path in (name for name in found if "/mignodes/" in name):
            node = json.loads(found[path][2])
            del node["metadata"]["resourceVersion"]
            node["status"].pop("resumed", None)
            found[path] = (0, 0, json.dumps(node))
        return {"mutations": len(self.machine.mutations())} | found
