"""int8 and fp8: calibrators swept, delicate layers left as they are, the best kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.variants import coverage, graphs
from autotune.adapters.variants.calibrate import Calibrator
from autotune.adapters.variants.gate import Judged, share
from autotune.adapters.variants.made import Made
from autotune.adapters.variants.prepare import Prepared, prepare
from autotune.adapters.variants.quantize import (
    Form,
    Quantization,
    Ranges,
    quantized,
    quantized_anything,
)
from autotune.adapters.variants.quiet import told
from autotune.adapters.variants.request import BuildRequest
from autotune.adapters.variants.running import Runner
from autotune.adapters.variants.sensitive import Group, Sensitivity
from autotune.adapters.variants.task import Task
from autotune.core.study import CalibrationMethod, CalibrationSpec
from autotune.core.variants import Attempt

_OPSETS = {Form.CPU: 17, Form.TENSORRT: 17, Form.FP8: 19}
"""The least that each form is written in; 19 is the first with float8."""
_EACH_UP_TO = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """One quantized graph and what the gate found."""

    how: Quantization
    method: CalibrationMethod
    path: Path
    judged: Judged
    seconds: float
    groups: tuple[Group, ...]
    optimized: Judged | None = None

    @property
    def final(self) -> Judged:
        return self.optimized or self.judged

    @property
    def measured(self) -> bool:
        return self.judged.drop is not None


class Calibrated:
    """One build of one form."""

    def __init__(self, task: Task, form: Form) -> None:
        self._task, self._form = task, form
        self._request = task.request
        self._per_channel = True
        self._narrow = False
        self._tried: list[_Tried] = []
        self._failed: list[Attempt] = []
        self._order: list[_Tried | Attempt] = []
        self._notes: list[str] = []

    def make(self, target: Path) -> Made:
        """Try everything that is asked for and write the best to ``target``; what fails is told."""
        spec = self._request.calibration
        if spec is None or not self._request.calibration_samples:
            return Made(refused=_no_data(self._request))
        self._notes += coverage.gaps(self._request.calibration_samples, self._request.samples)
        self._per_channel = spec.per_channel
        try:
            prepared = prepare(self._request.source, self._task.scratch, _OPSETS[self._form])
            self._notes += prepared.notes
            calibrator = self._calibrator(prepared)
        except Exception as error:  # noqa: BLE001 - ONNX and ONNX Runtime raise bare exceptions
            return self._nothing(f"the graph cannot be prepared: {told(error)}")
        given = self._given(prepared, spec.exclude or ())
        ranges = self._sweep(prepared, calibrator, spec, given)
        self._settle_width(prepared, ranges)
        best = self._best()
        if best is not None and not self._task.satisfied(best.final):
            self._improve(prepared, ranges, spec, best)
            self._settle_width(prepared, ranges)
        return self._finished(target)

    # ------------------------------------------------------------------------------ the attempts
    def _sweep(
        self,
        prepared: Prepared,
        calibrator: Calibrator,
        spec: CalibrationSpec,
        given: tuple[Group, ...],
    ) -> dict[CalibrationMethod, Ranges]:
        """Every method once; the ranges that were found."""
        found: dict[CalibrationMethod, Ranges] = {}
        for method in spec.methods:
            started = self._task.clock()
            self._task.say(f"calibrating, {method}")
            try:
                found[method] = calibrator.ranges(method)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(str(method), started, f"it cannot be calibrated: {told(error)}")
                continue
            how = Quantization(form=self._form, per_channel=self._per_channel)
            self._try(prepared, found[method], how, given, started)
            if found[method].endless:
                self._note(
                    f"{len(found[method].endless)} tensors hold infinities: what takes or gives"
                    " them stays in the source's precision"
                )
        return found

    def _settle_width(self, prepared: Prepared, ranges: dict[CalibrationMethod, Ranges]) -> None:
        """Whether weights are kept to 7 bits: where graph optimizations change the answers, the
        kernels that they bring in let sums of products saturate."""
        wide = self._best()
        if wide is None or self._narrow or self._form is not Form.CPU:
            return
        wide = self._optimized(wide)
        if not wide.final.changed:
            return
        how = dataclasses.replace(wide.how, narrow=True)
        narrow = self._try(prepared, ranges[wide.method], how, wide.groups, self._task.clock())
        if narrow is None or not narrow.measured:
            return
        narrow = self._optimized(narrow)
        self._narrow = _served(narrow) < _served(wide)

    def _improve(
        self,
        prepared: Prepared,
        ranges: dict[CalibrationMethod, Ranges],
        spec: CalibrationSpec,
        best: _Tried,
    ) -> None:
        """The best of the sweep is not good enough: give up some of the quantization."""
        until = self._task.clock() + self._task.search_s
        if self._form is Form.CPU:
            how = dataclasses.replace(best.how, heavy_only=True)
            self._try(prepared, ranges[best.method], how, best.groups, self._task.clock())
            best = self._best() or best
        if self._task.satisfied(best.final) or spec.exclude is not None or spec.max_excluded == 0:
            return
        self._task.say("looking for the layers that lose most")
        search = Sensitivity(
            task=self._task, prepared=prepared, ranges=ranges[best.method], how=best.how
        )
        now = self._task.clock()
        worst, note = search.ranked(now + (until - now) / 2)
        self._note(note)
        ways = [best.how]
        if self._form is Form.CPU and not best.how.heavy_only:
            # What is left out is still quantized for its neighbours, unless they are lighter ones.
            ways.append(dataclasses.replace(best.how, heavy_only=True))
        for count in _counts(min(spec.max_excluded, len(worst))):
            for how in ways:
                if self._task.clock() > until:
                    self._note(f"at most {_layers(count - 1)} left out: the time was up")
                    return
                groups = tuple(worst[:count])
                self._try(prepared, ranges[best.method], how, groups, self._task.clock())
                found = self._best()
                if found is not None and self._task.satisfied(found.final):
                    return

    def _try(
        self,
        prepared: Prepared,
        ranges: Ranges,
        how: Quantization,
        groups: tuple[Group, ...],
        started: float,
    ) -> _Tried | None:
        """Quantize and judge; where quantizing per channel fails, once more without."""
        how = dataclasses.replace(how, left_out=tuple(name for group in groups for name in group))
        path = self._task.scratch / f"attempt-{len(self._order)}.onnx"
        what = _what(ranges.method, how, len(groups))
        try:
            quantized(prepared, ranges, how, path)
            Runner(path)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(what, started, f"it cannot be quantized: {told(error)}")
            if not how.per_channel:
                return None
            self._per_channel = False
            whole = dataclasses.replace(how, per_channel=False)
            return self._try(prepared, ranges, whole, groups, self._task.clock())
        if not quantized_anything(path):
            self._fail(what, started, "nothing in the graph could be quantized")
            return None
        judged = self._task.judge(path)
        tried = _Tried(
            how=how,
            method=ranges.method,
            path=path,
            judged=judged,
            seconds=self._task.clock() - started,
            groups=groups,
        )
        self._tried.append(tried)
        self._order.append(tried)
        self._task.say_drop(what, judged)
        return tried

    # --------------------------------------------------------------------------------- the choice
    def _best(self) -> _Tried | None:
        """Of those that pass a limit the one with fewest layers left out, of those the least drop;
        else the least drop. All have weights of the width that was settled. What a CPU serves has
        to pass with graph optimizations too, which is measured when it matters."""
        limited = self._request.limit is not None
        while True:
            best = min(
                (each for each in self._tried if each.how.narrow is self._narrow and each.measured),
                key=lambda each: _order_of(each, limited=limited),
                default=None,
            )
            known = best is None or best.optimized is not None or not best.judged.passed
            if best is None or known or self._form is not Form.CPU:
                return best
            self._optimized(best)

    def _finished(self, target: Path) -> Made:
        kept = self._best()
        if kept is None:
            return self._nothing(self._why_nothing())
        model = graphs.load(kept.path)
        beside = graphs.save(model, target)
        refused = kept.final.refused
        if refused and kept.judged.drop is not None:
            refused += f", the best of {len(self._order)} attempts{self._advice()}"
        return Made(
            file=target,
            beside=beside,
            accuracy_drop=kept.judged.drop,
            refused=refused,
            attempts=self._attempts(kept),
            notes=tuple(dict.fromkeys((*self._notes, *kept.final.notes))),
        )

    def _optimized(self, tried: _Tried) -> _Tried:
        """Judged as a server runs it, too."""
        if tried.optimized is not None:
            return tried
        optimized = self._task.judge_optimized(tried.path, tried.judged)
        if optimized.optimized_drop is not None:
            self._task.say(f"with graph optimizations: {share(optimized.optimized_drop)}")
        judged = dataclasses.replace(tried, optimized=optimized)
        self._order[self._order.index(tried)] = judged
        self._tried[self._tried.index(tried)] = judged
        return judged

    # -------------------------------------------------------------------------------- what is told
    def _attempts(self, kept: _Tried | None) -> tuple[Attempt, ...]:
        return tuple(
            one
            if isinstance(one, Attempt)
            else Attempt(
                what=_what(one.method, one.how, len(one.groups)),
                accuracy_drop=one.judged.drop,
                seconds=one.seconds,
                kept=one is kept,
                note=_note_of(one),
            )
            for one in self._order
        )

    def _fail(self, what: str, started: float, note: str) -> None:
        attempt = Attempt(
            what=what, accuracy_drop=None, seconds=self._task.clock() - started, note=note
        )
        self._failed.append(attempt)
        self._order.append(attempt)
        self._task.say(f"{what}: {note}")

    def _note(self, note: str) -> None:
        if note and note not in self._notes:
            self._notes.append(note)

    def _nothing(self, why: str) -> Made:
        return Made(refused=why, attempts=self._attempts(None), notes=tuple(self._notes))

    def _why_nothing(self) -> str:
        if self._tried:
            return self._tried[-1].judged.refused
        last = self._failed[-1].note if self._failed else "no calibration method is named"
        return f"none of {len(self._failed)} attempts gave a graph: {last}"

    def _advice(self) -> str:
        spec = self._request.calibration
        assert spec is not None
        if spec.exclude is not None:
            return "; without calibration.exclude the layers to leave out are looked for"
        most = max(len(tried.groups) for tried in self._tried)
        return "; a larger calibration.max_excluded may help" if most == spec.max_excluded else ""

    # --------------------------------------------------------------------------------- the pieces
    def _calibrator(self, prepared: Prepared) -> Calibrator:
        assert self._request.calibration is not None
        samples = self._request.calibration_samples[: self._request.calibration.samples]
        runner = Runner(prepared.path)
        feeds = [runner.feed(sample) for sample in samples]
        return Calibrator(prepared, self._form, feeds, self._task.scratch)

    def _given(self, prepared: Prepared, names: Iterable[str]) -> tuple[Group, ...]:
        """The nodes that the study leaves out, with what goes along with them."""
        along = {group[0]: group for group in graphs.heavy_groups(prepared.model)}
        known = {node.name for node in prepared.model.graph.node}
        if missing := sorted(set(names) - known):
            self._note(
                "calibration.exclude names nodes that the prepared graph does not have: "
                + ", ".join(missing)
            )
        return tuple(along.get(name, (name,)) for name in names if name in known)


def _order_of(tried: _Tried, *, limited: bool) -> tuple[bool, float, float]:
    drop = tried.judged.drop or 0.0
    if limited and tried.final.passed:
        return (False, len(tried.groups), drop)
    return (limited, drop, len(tried.groups))


def _served(tried: _Tried) -> float:
    """The drop as a server would have it, with graph optimizations on."""
    drop = tried.final.optimized_drop
    return float("inf") if drop is None else drop


def _counts(most: int) -> list[int]:
    """Layers to leave out, step by step: one more each time, later twice as many."""
    counts = list(range(1, min(most, _EACH_UP_TO) + 1))
    while counts and counts[-1] < most:
        counts.append(min(most, counts[-1] * 2))
    return counts


def _what(method: CalibrationMethod, how: Quantization, left_out: int) -> str:
    words = [str(method), "per channel" if how.per_channel else "per tensor"]
    words += ["Conv, MatMul and Gemm only"] if how.heavy_only else []
    words += ["7-bit weights"] if how.narrow else []
    words += [f"{_layers(left_out)} left in the source's precision"] if left_out else []
    return ", ".join(words)


def _layers(count: int) -> str:
    return f"{count} layer" if count == 1 else f"{count} layers"


def _note_of(tried: _Tried) -> str:
    left = ", ".join(group[0] for group in tried.groups)
    return "; ".join(words for words in (left, tried.final.refused, *tried.final.notes) if words)


def _no_data(request: BuildRequest) -> str:
    return (
        f"{request.variant.precision} needs calibration data: give calibration.data, an .npz file"
        " or a folder of inputs, with requests like those in service"
    )
