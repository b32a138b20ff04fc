"""Parts of an engine, made and tied together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.engine.consequences import Consequences
from controller.keeping.classsync import ClassSync
from controller.keeping.nodeclasses import NodeClasses
from controller.keeping.nodelabels import NodeLabels
from controller.keeping.templatesync import TemplateSync
from controller.lifecycle.allocation_writes import AllocationWrites
from controller.lifecycle.claim_labels import ClaimLabels
from controller.lifecycle.claimwrites import ClaimWrites
from controller.lifecycle.cleanup import Ender
from controller.lifecycle.failures.evictions import Evictions
from controller.lifecycle.failures.failed_prepare import FailedPrepares
from controller.lifecycle.failures.prepare_retries import PrepareRetries
from controller.lifecycle.giving_up import GivingUp
from controller.lifecycle.hindered import Hindered
from controller.lifecycle.lost_nodes import LostNodes
from controller.lifecycle.nominations import Nominations
from controller.lifecycle.partial_allocations import PartialAllocations
from controller.lifecycle.reserving.cut_first import CutFirst
from controller.lifecycle.reserving.reservation_writes import ReservationWrites
from controller.lifecycle.upkeep import Upkeep
from controller.queue.exclusions import Exclusions
from controller.queue.failed_gpus import FailedGpus
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.unproven import Unproven
from controller.reporting.observer import ControllerObserver
from controller.reporting.report import Reporter
from controller.serving.agenda import Agenda
from controller.serving.answers import Answers
from controller.serving.asking import Asking
from controller.serving.decisions import Decisions
from controller.serving.ended_claims import EndedClaims
from controller.serving.evaluations import Evaluations
from controller.serving.gangs.counts import GangCounts
from controller.serving.gangs.halves import HalfGangs
from controller.serving.gangs.service import Gangs
from controller.serving.gangs.writes import GangWrites
from controller.serving.placing import Placing
from controller.serving.pods import PodService
from controller.serving.retries import Retries
from controller.serving.waiting import Waiting
from controller.writing.in_flight import InFlight
from controller.writing.outbox import Outbox
from controller.writing.writers import Writers
from dra.allocator.allocate import Allocator
from dra.allocator.problem import examine
from dra.claims.reader import Reader
from dra.gpu.layouts import Classes


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that an engine calls, one after the other."""

    agenda: Agenda
    in_flight: InFlight
    consequences: Consequences
    pods: PodService
    claims: EndedClaims
    decisions: Decisions
    failed_gpus: FailedGpus
    asking: Asking
    line: WaitingLine
    retries: Retries
    classes: ClassSync
    templates: TemplateSync
    labels: NodeLabels
    node_classes: NodeClasses
    reservations: ReservationWrites


def make_parts(  # noqa: PLR0913 - what they work on and with
    cluster: Cluster,
    reader: Reader,
    *,
    writers: Writers,
    outbox: Outbox,
    reporter: Reporter,
    gate: str,
    now: Callable[[], float],
    observer: ControllerObserver,
    wake: Callable[[], None],
    finalizer_at_creation: bool,
    node_labels: bool,
    class_files: Callable[[], Classes | None] | None,
    evaluations: Evaluations | None,
) -> Parts:
    """The parts of an engine; for the arguments see there."""
    in_flight = InFlight(outbox, wake)
    allocator = Allocator(cluster.fleet, cluster.hosts)
    exclusions = Exclusions(now)
    failed_gpus = FailedGpus(cluster, now=now)
    classes = ClassSync(cluster, writers.objects, in_flight, reporter, now=now)
    templates = TemplateSync(cluster, writers.objects, in_flight, reporter, now=now)
    labels = NodeLabels(cluster, writers.objects, in_flight, now, enabled=node_labels)
    node_classes = NodeClasses(cluster, reporter, now, read=class_files)
    allocations = AllocationWrites(cluster, writers, reporter, in_flight, gate=gate, now=now)
    line = WaitingLine(cluster, allocator, reporter, now=now)
    agenda = Agenda(cluster, gate=gate, now=now)
    unproven = Unproven(agenda.pods, reporter, cluster.template_of, now=now)
    retries = Retries(cluster, reporter, line=line, agenda=agenda)
    answers = Answers(cluster, agenda, retries, now=now)
    waiting = Waiting(cluster, agenda, reporter, exclusions=exclusions, now=now)
    asking = Asking(
        cluster,
        reader,
        agenda,
        evaluations=evaluations,
        line=line,
        waiting=waiting,
        now=now,
    )
    writes = ClaimWrites(cluster, in_flight, answers.to_claim)
    failed_prepares = FailedPrepares(
        cluster, writers.claims, reporter, writes=writes, exclusions=exclusions
    )
    giving_up = GivingUp(cluster, writers.claims, reporter, writes=writes)
    lost_nodes = LostNodes(cluster, giving_up, now=now)
    hindered = Hindered(
        cluster, giving_up, lambda pod: examine(pod, cluster, reader).hindrance, now=now
    )
    nominations = Nominations(cluster, writers.pods, in_flight, answers.to_pod, now=now)
    prepare_retries = PrepareRetries(cluster, writers.pods, in_flight=in_flight, now=now)
    evictions = Evictions(cluster, writers.pods, reporter, in_flight=in_flight, now=now)
    reservations = ReservationWrites(cluster, writers.objects, in_flight, now=now)
    cut_first = CutFirst(
        cluster, reservations, failed_gpus, reporter, exclusions=exclusions, now=now
    )
    partial_allocations = PartialAllocations(
        cluster, reader, writers.claims, writes=writes, allocator=allocator
    )
    decisions = Decisions(now)
    placing = Placing(
        cluster,
        decisions,
        line=line,
        partial_allocations=partial_allocations,
        exclusions=exclusions,
        unproven=unproven,
        observer=observer,
        now=now,
    )
    counts = GangCounts(cluster, reader)
    halves = HalfGangs(cluster, counts, giving_up, now=now)
    gang_writes = GangWrites(
        cluster,
        agenda,
        counts,
        allocations=allocations,
        line=line,
        answers=answers,
        now=now,
    )
    gangs = Gangs(
        cluster,
        agenda,
        counts,
        placing=placing,
        line=line,
        writes=gang_writes,
        halves=halves,
        now=now,
    )
    upkeep = Upkeep(
        prepare_retries=prepare_retries,
        evictions=evictions,
        cut_first=cut_first,
        lost_nodes=lost_nodes,
        hindered=hindered,
        nominations=nominations,
    )
    pods = PodService(
        cluster,
        reader,
        agenda,
        in_flight=in_flight,
        allocations=allocations,
        failed_prepares=failed_prepares,
        upkeep=upkeep,
        halves=halves,
        line=line,
        unproven=unproven,
        gangs=gangs,
        gang_writes=gang_writes,
        placing=placing,
        waiting=waiting,
        asking=asking,
        answers=answers,
        reporter=reporter,
    )
    ender = Ender(
        cluster,
        reader,
        writers.claims,
        writes=writes,
        at_creation=finalizer_at_creation,
        ask=asking.ask_for_all,
        now=now,
    )
    consequences = Consequences(
        cluster,
        agenda,
        allocator,
        placing=placing,
        gangs=gangs,
        line=line,
        exclusions=exclusions,
        unproven=unproven,
        failed_gpus=failed_gpus,
        allocations=allocations,
        upkeep=upkeep,
        reservations=reservations,
        classes=classes,
        templates=templates,
        labels=labels,
        node_classes=node_classes,
        reporter=reporter,
    )
    return Parts(
        agenda=agenda,
        in_flight=in_flight,
        consequences=consequences,
        pods=pods,
        claims=EndedClaims(
            agenda,
            in_flight,
            ender=ender,
            failed_prepares=failed_prepares,
            labels=ClaimLabels(
                cluster, writers.claims, writes=writes, last=lambda: allocations.last, now=now
            ),
        ),
        decisions=decisions,
        failed_gpus=failed_gpus,
        asking=asking,
        line=line,
        retries=retries,
        classes=classes,
        templates=templates,
        labels=labels,
        node_classes=node_classes,
        reservations=reservations,
    )
