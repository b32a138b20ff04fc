"""The half of the check that makes slices: what it finds out and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.check.items import Item
from kubeletplugin.check.report import Report
from kubeletplugin.check.trying.tools import Place
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.journal.ownership import owned_at_once
from sim.check import SimulatedTools
from sim.nvml.variants import Variants
from tests.helpers.waiting import PATIENCE
from tests.kubeletplugin.check.conftest import A100, H100, Node
from tests.kubeletplugin.check.creating import (
    CI_CREATE,
    CREATE,
    GI_CREATE,
    MakeNode,
    answer,
    assert_clean,
    refused,
    state_of,
)


def expected(node: Node, variants: Variants) -> dict[Item, str]:
    """What the check has to find out of a machine with these variants."""
    extra = [
        ci.creatable and variants.full_compute == "product"
        for gi in node.machine.product(0).gi_profiles
        for ci in gi.ci_profiles
        if ci.enum >= 7
    ]
    kinds = {"made" if each else "refused" for each in extra}
    return {
        Item.MIG_UUID: variants.mig_uuid,
        Item.LOOKUP_BY_UUID: variants.lookup_by_uuid,
        Item.PROCESSES: variants.processes,
        Item.FULL_COMPUTE: kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none offered",
        Item.AFTER_LOSS: variants.after_loss,
        Item.SHUTDOWN: variants.shutdown,
        Item.ATTACH: variants.attach,
        Item.INSTANCE_LINGERS: str(variants.instance_lingers),
        Item.CONFIG_EVENTS: variants.config_events,
    }


@pytest.mark.every_variant
def test_the_variants_of_a_machine_are_found_out(make_node: MakeNode, variants: Variants) -> None:
    """Each belief that is a variant of the simulator has an answer, and it is the true one."""
    node = make_node(H100, H100, variants=variants)
    wanted = expected(node, variants)
    fields = msgspec.structs.fields(Variants)
    assert {i.value.replace("-", "_") for i in wanted} == {f.name for f in fields}
    report = node.check(*CREATE).report
    node.machine.lose(1)
    lost = node.check().report
    # The person resets the GPU while the check waits for the answer.
    found = {
        **{item: answer(report, item) for item in wanted if item not in OF_A_LOST_GPU},
        Item.LOOKUP_BY_UUID: answer(lost, Item.LOOKUP_BY_UUID),
        Item.AFTER_LOSS: answer(reset_while_asked(node, 1), Item.AFTER_LOSS),
    }
    assert found == wanted


OF_A_LOST_GPU = {Item.LOOKUP_BY_UUID, Item.AFTER_LOSS}


def reset_while_asked(node: Node, index: int) -> Report:
    """The check with --await-reset; the GPU is back before the answer is given."""
    from kubeletplugin.check import command

    def ask(_question: str) -> bool:
        node.machine.recover(index)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_asker", lambda *, yes: ask)
        return node.check("--await-reset", str(index)).report


def test_a_process_that_nvml_names_by_another_number_is_not_taken_for_ours(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, numbers = SimulatedTools.hold, list[int]()

    @contextmanager
    def numbered_otherwise_here(tools: SimulatedTools, place: Place) -> Iterator[int]:
        with hold(tools, place) as pid:
            numbers.append(pid)
            yield pid + 1

    monkeypatch.setattr(SimulatedTools, "hold", numbered_otherwise_here)
    report = make_node(A100).check(*CREATE).report
    (found,) = (b for b in report.beliefs if b.item is Item.PROCESSES)
    assert (found.answer, found.detail) == ("other pids", str(numbers[0]))


def test_every_profile_is_made_twice_and_nothing_is_left(make_node: MakeNode) -> None:
    node = make_node(A100)
    checked = node.check(*CREATE)
    assert checked.code == 0, checked.screen
    names = [p.name for p in node.machine.product(0).gi_profiles]
    made = [(t.profile, t.round) for t in checked.report.trials if not t.refused]
    assert sorted(made) == sorted((n, r) for n in names for r in (1, 2))
    assert answer(checked.report, Item.TAKEN_PLACEMENT) == "INSUFFICIENT_RESOURCES"
    assert answer(checked.report, Item.BUSY) == "IN_USE"
    assert answer(checked.report, Item.DELIVERED) == "as advertised"
    assert answer(checked.report, Item.INSTANCE_IDS) == "same"
    assert checked.report.times[GI_CREATE].calls == 2 * len(names)
    assert checked.report.times[CI_CREATE].median > 0
    assert_clean(node)


def test_a_slice_with_less_than_advertised_is_told(make_node: MakeNode) -> None:
    node = make_node(A100)
    file = node.machine.directory / "products" / f"{A100}.json"
    data = json.loads(file.read_text())
    for profile in data["gi_profiles"]:
        if profile["name"] == "3g.20gb":
            profile["multiprocessors"] += 10
    file.write_text(json.dumps(data))
    report = node.check(*CREATE).report
    (found,) = (b for b in report.beliefs if b.item is Item.DELIVERED)
    assert found.answer == "less"
    assert re.search(r"3g\.20gb: 42 of 52 multiprocessors", found.detail)


def test_a_person_is_asked_and_may_say_no(make_node: MakeNode) -> None:
    node = make_node(A100)
    assert "There is no terminal to ask" in refused(node, "--create", "0").output
    with pytest.MonkeyPatch.context() as patch:
        from kubeletplugin.check import command

        patch.setattr(command, "_asker", lambda *, yes: lambda question: False)
        assert "nothing was done" in refused(node, "--create", "0").output
    assert_clean(node)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
def test_the_question_stands_on_the_terminal(make_node: MakeNode, typed: str, code: int) -> None:
    node = make_node(A100)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "sim", "check", "--hardware", str(node.machine.directory)]
    with subprocess.Popen(
        [*command, "--", "--create", "0"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        said, _ = process.communicate(timeout=PATIENCE)
    os.close(ours)
    assert "Make and remove one slice of each of its 7 profiles, 2 times?" in said
    assert process.returncode == code, said
    assert bool(node.machine.mutations()) is (code == 0)
    assert_clean(node)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda n: n.machine.create_slice(0, "1g.5gb"), "has GPU instances ("),
        (lambda n: n.machine.set_mig_mode(0, enabled=False), "is not in MIG mode"),
        (lambda n: n.machine.start_process(0, 4711), "is used by 1 processes"),
        (lambda n: n.machine.lose(0), "no such GPU"),
    ],
    ids=["instances", "no MIG", "processes", "lost"],
)
def test_a_gpu_that_is_not_idle_is_refused(
    make_node: MakeNode, prepare: Callable[[Node], None], words: str
) -> None:
    node = make_node(A100)
    prepare(node)
    assert words in refused(node, *CREATE).output


def test_a_gpu_with_claims_in_the_journal_is_refused(make_node: MakeNode) -> None:
    node = make_node(A100)
    gpu = node.machine.gpu(0).uuid
    claim = ClaimRef("team", "train", "uid-1")
    entry = Entry(
        claim, "gpu-0-mig-1g5gb-19-0", State.PREPARED, gpu, "boot", placement=Placement(0, 1)
    )
    Journal(state_of(node) / "journal.json").put(entry)
    assert "team/train" in refused(node, *CREATE).output


def test_a_gpu_may_be_called_as_the_plugin_calls_it(make_node: MakeNode) -> None:
    node = make_node(A100, H100)
    names = {"version": 1, "gpus": {node.machine.gpu(1).uuid: 7}}
    state_of(node).mkdir(parents=True)
    (state_of(node) / "gpus.json").write_text(json.dumps(names))
    report = node.check("--create", "gpu-7", "--yes").report
    assert {t.profile for t in report.trials} >= {"1g.10gb", "3g.40gb"}
    assert "it has: 0 or GPU-" in refused(node, "--create", "gpu-1", "--yes").output


HOLDER = """
import sys, pynvml
from sim.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_plugin_that_holds_the_gpus_is_not_overtaken_and_one_that_lets_go_is_no_obstacle(
    make_node: MakeNode,
) -> None:
    node = make_node(A100)
    with owned_at_once(state_of(node)) as owned:
        assert owned
        command = [sys.executable, "-c", HOLDER, str(node.machine.directory)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as plugin:
            assert plugin.stdout is not None
            assert plugin.stdout.readline() == "holds\n"
            assert "kubectl mig drain" in refused(node, *CREATE).output
            plugin.kill()
        assert node.check(*CREATE).report.trials
