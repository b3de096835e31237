"""What a planned call learns from the steps that really ran.

A plan is made from guesses: which outputs are differentiated, what the code outside
needs, that each forward is followed by its backward. The first steps show whether they
were right; if not, `news` says what was wrong, and the call is planned again.
"""

from __future__ import annotations

from lowtide.engine.graphs.outside import Observation, residents_of
from lowtide.engine.planning.decide import Planning
from lowtide.engine.planning.prepare import unpriced
from lowtide.engine.training import Inputs
from lowtide.step.format import format_bytes

# Outputs of fewer bytes than this share of the peak are not worth another plan.
_LEAST_SHARE = 0.02


class Learning:
    """Watches steps of a planned call, from one call to the next.

    `reads_anew` says that graphs are to be captured again, not just planned.
    """

    def __init__(self, planning: Planning) -> None:
        self.planning = planning
        self.watch = planning.watch
        self.is_paused = False
        self.is_compared = False
        self.reads_anew = False
        self.graphs_before = 0

    @property
    def is_on(self) -> bool:
        """Whether there is something to learn; a plan that was given stays as it is.

        So does one that processes share which talk to each other in its graph: what one
        of them learns alone would part them.
        """
        planning = self.planning
        return planning.given is None and not (
            self.is_paused or planning.agreement.exchanges
        )

    def observe_outside(self) -> None:
        """Watch from the end of the first planned call to its backward."""
        is_alone = self.planning.route.is_whole and len(self.watch.held) == 1
        if self.is_on and self.planning.outside is None and is_alone:
            self._begin(Observation(self.planning.modules, is_whole=False))

    def observe_step(self, inputs: Inputs) -> None:
        """Watch a whole step, unless one has been compared with its plan already."""
        if self.is_on and not self.is_compared and not self.watch.held:
            planning = self.planning
            there = residents_of(planning.modules, planning.optimizer, inputs)
            self._begin(Observation(planning.modules, there, is_whole=True))

    def _begin(self, observation: Observation) -> None:
        if observation.begin():
            self.watch.observation = observation
            self.graphs_before = self.watch.graphs

    def end(self) -> Observation | None:
        """What was seen since the last call, if something was watched."""
        seen, self.watch.observation = self.watch.observation, None
        if seen is not None:
            seen.end()
        return seen

    def news(self) -> str:
        """What was taken for something else before the last step, or nothing.

        With several graphs it is not known which one a surprise belongs to, so it is
        not kept for a later step either.
        """
        watched = self.watch.observation
        if self.is_on and self.watch.held and watched is not None and watched.is_whole:
            return ""  # another forward of the same step
        seen = self.end()
        if not self.is_on or self.watch.held:
            return ""
        news = [self.note_graphs() or self.compare_peak(seen)]
        if self.planning.route.is_whole:
            news += [self.note_absent(), self.note_in_flight(), self.note_outside(seen)]
            news.append(self.note_dropped())
        self.watch.seen_absent = None
        return "; ".join(filter(None, news))

    def note_graphs(self) -> str:
        """Graphs that were planned one by one as they arrived are known by now."""
        visits, self.watch.visits = self.watch.visits, None
        if not visits:
            return ""
        self.planning.foreseen = [(unpriced(p), n) for p, n in visits.items()]
        return f"its {len(visits)} graphs are planned together"

    def note_absent(self) -> str:
        """Outputs may be differentiated that were not expected to be.

        If others are differentiated in turns, all that ever were are planned for, so
        this comes to an end.
        """
        absent, expected = self.watch.seen_absent, self.watch.expected_absent
        if absent is not None and expected is not None:
            absent &= expected
        if absent is None or absent == expected:
            return ""
        self.watch.expected_absent = absent
        self.reads_anew = True
        return "other outputs are differentiated than was expected"

    def note_dropped(self) -> str:
        """The caller may let go of an output before the backward, or hold on to it.

        Logits beside a loss need not live to the end then. What was held once is taken
        to be held always, so this comes to an end.
        """
        dropped, self.watch.dropped = self.watch.dropped, None
        plans = self.planning.plans
        if dropped is None or not plans or self.planning.in_flight > 1:
            return ""
        piece, storages = dropped
        if piece.let_go:
            if piece.let_go <= storages:
                return ""
            piece.let_go, piece.is_held = piece.let_go & storages, True
            news = "outputs that were let go before the backward are held now"
        else:
            gone = storages.intersection(piece.held_outputs)
            nbytes = sum(piece.storages[s].nbytes for s in gone)
            is_little = nbytes < _LEAST_SHARE * plans[-1].peak_bytes
            if piece.is_held or is_little or not plans[-1].recomputed:
                return ""
            piece.let_go = gone
            news = "outputs are let go before the backward"
        piece.step = None
        return news

    def note_in_flight(self) -> str:
        """Several forwards may wait for their backwards together."""
        most = self.watch.most_in_flight
        if most <= self.planning.in_flight:
            return ""
        self.planning.in_flight = most
        self.is_compared = False  # what was compared was the plan for one alone
        return f"{most} forwards wait for their backwards together"

    def note_outside(self, seen: Observation | None) -> str:
        """The code outside may need more, or less, than was guessed."""
        if seen is None or seen.outside is None or seen.is_shared:
            return ""
        if self.planning.in_flight > 1:
            return ""
        if self.planning.should_plan_again(seen.outside):
            return f"the code outside needs {format_bytes(seen.outside.room_bytes)}"
        return ""

    def compare_peak(self, seen: Observation | None) -> str:
        """A whole step may really have taken more than its plans say.

        What it shares with another model is no part of the step that a share is of.
        """
        planning = self.planning
        if seen is None or not seen.is_whole or not planning.plans:
            return ""
        if self.watch.graphs != self.graphs_before:
            return ""  # graphs were captured meanwhile, and their ops measured
        self.is_compared = True
        if seen.is_shared and planning.settings.is_share:
            return ""
        highest, planned = seen.highest_bytes, planning.promised_bytes
        allowed = max(planned, planning.allowed_bytes)
        if highest <= 1.01 * allowed + (1 << 20):
            return ""
        planning.beside_bytes = highest - planned
        return (
            f"a step took {format_bytes(highest)} where its plan says "
            f"{format_bytes(planned)}"
        )
