"""int8 and fp8: calibrators swept, delicate layers left as they are, the best kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.adapters.variants import coverage, graphs
from autotune.adapters.variants.attempts import Group, Ledger, Tried, Way, layers
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
from autotune.adapters.variants.sensitive import Sensitivity
from autotune.adapters.variants.task import Task
from autotune.core.study import CalibrationMethod, CalibrationSpec
from autotune.core.variants import Attempt

_OPSETS = {Form.CPU: 17, Form.TENSORRT: 17, Form.FP8: 19}
"""The least that each form is written in; 19 is the first with float8."""
_EACH_UP_TO = 8
_NARROWED = 2
"""The best with 8-bit weights need not be the best with 7."""


def make(task: Task, form: Form, target: Path) -> Made:
    """Try everything that is asked for and write the best to ``target``; what fails is told."""
    request = task.request
    if request.calibration is None or not request.calibration_samples:
        return Made(refused=_no_data(request))
    notes = list(coverage.gaps(request.calibration_samples, request.samples))
    try:
        task.say("preparing the graph")
        prepared = prepare(request.source, task.scratch, _OPSETS[form])
        feeds = Runner(prepared.path).feed
        samples = request.calibration_samples[: request.calibration.samples]
        calibrator = Calibrator(prepared, form, [feeds(one) for one in samples], task.scratch)
    except OSError:  # a full disk says nothing of the model
        raise
    except Exception as error:  # noqa: BLE001 - ONNX and ONNX Runtime raise bare exceptions
        return Made(refused=f"the graph cannot be prepared: {told(error)}", notes=tuple(notes))
    search = _Search(task, form, request.calibration, prepared, calibrator)
    search.notes += [*notes, *prepared.notes]
    search.run()
    return search.made(target)


class _Search:
    """For the best quantization of one prepared graph in one form."""

    def __init__(
        self,
        task: Task,
        form: Form,
        spec: CalibrationSpec,
        prepared: Prepared,
        calibrator: Calibrator,
    ) -> None:
        self._task, self._form, self._spec = task, form, spec
        self._prepared, self._calibrator = prepared, calibrator
        self._ranges: dict[CalibrationMethod, Ranges] = {}
        self._per_channel = spec.per_channel
        self._ledger = Ledger(
            limited=task.request.limit is not None,
            optimize=self._optimize if form is Form.CPU else None,
        )
        self._hurried = False
        self.notes: list[str] = []

    def run(self) -> None:
        self._sweep()
        self._settle_width()
        best = self._ledger.best()
        if best is not None and not self._task.satisfied(best.final):
            self._improve(best.way)
            self._settle_width()

    # ------------------------------------------------------------------------------ the attempts
    def _sweep(self) -> None:
        """Every method once."""
        given = self._given(self._spec.exclude or ())
        for method in self._spec.methods:
            started = self._task.clock()
            count = len(self._task.request.calibration_samples[: self._spec.samples])
            self._task.say(f"calibrating on {count} requests, {method}")
            try:
                self._ranges[method] = self._calibrator.ranges(method)
            except OSError:  # a full disk says nothing of the model
                raise
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises bare exceptions
                self._fail(str(method), started, f"it cannot be calibrated: {told(error)}")
                continue
            how = Quantization(form=self._form, per_channel=self._per_channel)
            self._try(Way(method=method, how=how, groups=given), started)
            if endless := len(self._ranges[method].endless):
                self._note(
                    f"{endless} tensors hold infinities: what takes or gives them stays in the"
                    " source's precision"
                )

    def _settle_width(self) -> None:
        """Whether weights are kept to 7 bits: where graph optimizations change the answers, the
        kernels that they bring in let sums of products saturate."""
        wide = self._ledger.best()
        if wide is None or self._ledger.narrow:
            return
        wide = self._ledger.optimized(wide)
        if not wide.final.changed:
            return
        for one in self._ledger.leading(_NARROWED):
            if one.judged.passed or not wide.judged.passed:
                self._try(_with(one.way, narrow=True))
        self._ledger.narrow = True
        narrow = self._ledger.best()
        better = narrow is not None and (
            self._ledger.optimized(narrow).served_drop < wide.served_drop
        )
        self._ledger.narrow = better

    def _improve(self, way: Way) -> None:
        """The best of the sweep is not good enough: give up some of the quantization."""
        until = self._task.clock() + self._task.search_s
        ways = [way]
        if self._form is Form.CPU:
            # What is left out is still quantized for its neighbours, unless heavy ones alone are.
            ways.append(_with(way, heavy_only=True))
            self._try(ways[1])
        if self._good_enough() or self._spec.exclude is not None or not self._spec.max_excluded:
            return
        worst = self._delicate(way, until)
        for count in _counts(min(self._spec.max_excluded, len(worst))):
            for each in ways:
                if self._task.clock() > until:
                    most = max(len(tried.way.groups) for tried in self._ledger.tried)
                    self._note(f"at most {layers(most)} left out: the time was up")
                    self._hurried = True
                    return
                self._try(dataclasses.replace(each, groups=tuple(worst[:count])))
                if self._good_enough():
                    return

    def _delicate(self, way: Way, until: float) -> list[Group]:
        """The layers that lose most first, as far as half the time gets."""
        self._task.say("looking for the layers that lose most")
        search = Sensitivity(
            task=self._task,
            prepared=self._prepared,
            ranges=self._ranges[way.method],
            how=way.how,
        )
        now = self._task.clock()
        worst, note = search.ranked(now + (until - now) / 2)
        self._note(note)
        self._hurried = bool(note)
        return worst

    def _try(self, way: Way, started: float | None = None) -> Tried | None:
        """Quantize and judge; where quantizing per channel fails, once more without."""
        started = self._task.clock() if started is None else started
        path = self._task.scratch / f"attempt-{len(self._ledger)}.onnx"
        try:
            quantized(self._prepared, self._ranges[way.method], way.quantization, path)
            Runner(path)
        except OSError:  # a full disk says nothing of the model
            raise
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises bare exceptions
            self._fail(way.words, started, f"it cannot be quantized: {told(error)}")
            if not way.how.per_channel:
                return None
            self._per_channel = False
            return self._try(_with(way, per_channel=False))
        if not quantized_anything(path):
            self._fail(way.words, started, "nothing in the graph could be quantized")
            return None
        self._task.say(f"{way.words}: asked {len(self._task.request.samples)} requests")
        judged = self._task.judge(path)
        seconds = self._task.clock() - started
        tried = Tried(way=way, path=path, judged=judged, seconds=seconds)
        self._ledger.add(tried)
        self._task.say_drop(way.words, judged)
        return tried

    def _optimize(self, tried: Tried) -> Judged:
        judged = self._task.judge_optimized(tried.path, tried.judged)
        if judged.optimized_drop is not None:
            self._task.say(f"with graph optimizations: {share(judged.optimized_drop)}")
        return judged

    def _good_enough(self) -> bool:
        best = self._ledger.best()
        return best is not None and self._task.satisfied(best.final)

    # -------------------------------------------------------------------------------- what is told
    def made(self, target: Path) -> Made:
        """The best, written to ``target``."""
        kept = self._ledger.best()
        if kept is None:
            attempts = self._ledger.attempts(None)
            return Made(refused=self._why_nothing(), attempts=attempts, notes=tuple(self.notes))
        beside = graphs.save(graphs.load(kept.path), target)
        refused = kept.final.refused
        if refused:
            refused += f", the best of {len(self._ledger)} attempts{self._advice()}"
        return Made(
            file=target,
            beside=beside,
            accuracy_drop=kept.judged.drop,
            refused=refused,
            attempts=self._ledger.attempts(kept),
            hurried=self._hurried,
            notes=tuple(dict.fromkeys((*self.notes, *kept.final.notes))),
        )

    def _fail(self, what: str, started: float, note: str) -> None:
        seconds = self._task.clock() - started
        self._ledger.add(Attempt(what=what, accuracy_drop=None, seconds=seconds, note=note))
        self._task.say(f"{what}: {note}")

    def _note(self, note: str) -> None:
        if note and note not in self.notes:
            self.notes.append(note)

    def _why_nothing(self) -> str:
        if tried := self._ledger.tried:
            return tried[-1].judged.refused
        failed = self._ledger.failed
        last = failed[-1].note if failed else "no calibration method is named"
        return f"none of {len(failed)} attempts gave a graph: {last}"

    def _advice(self) -> str:
        if self._spec.exclude is not None:
            return "; without calibration.exclude the layers to leave out are looked for"
        most = max(len(tried.way.groups) for tried in self._ledger.tried)
        used_up = most == self._spec.max_excluded
        return "; a larger calibration.max_excluded may help" if used_up else ""

    def _given(self, names: Iterable[str]) -> tuple[Group, ...]:
        """The nodes that the study leaves out, with what goes along with them."""
        model = self._prepared.model
        along = {group[0]: group for group in graphs.heavy_groups(model)}
        known = {node.name for node in model.graph.node}
        if missing := sorted(set(names) - known):
            self._note(
                "calibration.exclude names nodes that the prepared graph does not have: "
                + ", ".join(missing)
            )
        return tuple(along.get(name, (name,)) for name in names if name in known)


def _with(way: Way, **changes: Any) -> Way:
    return dataclasses.replace(way, how=dataclasses.replace(way.how, **changes))


def _counts(most: int) -> list[int]:
    """Layers to leave out, step by step: one more each time, later twice as many."""
    counts = list(range(1, min(most, _EACH_UP_TO) + 1))
    while counts and counts[-1] < most:
        counts.append(min(most, counts[-1] * 2))
    return counts


def _no_data(request: BuildRequest) -> str:
    return (
        f"{request.variant.precision} needs calibration data: give calibration.data, an .npz file"
        " or a folder of inputs, with requests like those in service"
    )
