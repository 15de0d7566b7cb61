"""What someone reads in the morning: what, by how much, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from autotune.core.challenge import Verdict
from autotune.core.decision import Decision
from autotune.core.drift import Cause, Drift, Likelihood
from autotune.core.judged import Judged
from autotune.core.plain import finite
from autotune.core.promotions import Edited
from autotune.core.schedules import Outcome, Schedule
from autotune.core.sla import Outcome as Kept
from autotune.core.sla import Sla
from autotune.core.sla import Verdict as SlaVerdict
from autotune.core.trial import Trial, TrialState

FIGURES = ("saturation_qps", "instances", "memory_mb", "utilization")
"""What is told of a configuration beside the latencies of the SLA."""
_SLA = {
    Kept.MEETS: "The SLA is met",
    Kept.MISSES: "The SLA is missed",
    Kept.UNDECIDED: "Whether the SLA is met is not sure",
}


def when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


# ------------------------------------------------------------------------------------- plain data
def figures(judged: Judged, sla: Sla) -> dict[str, Any]:
    """A configuration's figures with their intervals, as plain data."""
    names = [*(f"p{p:g}_ms" for p in sorted(sla.latency_ms)), *FIGURES]
    known = {name: judged.estimate(name) for name in names}
    plain: dict[str, Any] = finite({
        name: {
            "value": each.value,
            "interval": None if each.interval is None else [each.interval.low, each.interval.high],
        }
        for name, each in known.items()
        if each is not None
    })  # fmt: skip
    return plain


def told_of(trial: Trial, judged: Judged | None, sla: Sla) -> dict[str, Any]:
    """A trial for a night's summary."""
    return {
        "trial": trial.number,
        "candidate": trial.candidate.to_json(),
        "state": str(trial.state),
        "reason": trial.reason,
        "sla": None if judged is None else str(judged.outcome),
        "tightest": "" if judged is None else _tightest(judged.verdict),
        "sla_reasons": [] if judged is None else list(judged.verdict.reasons),
        "figures": {} if judged is None else figures(judged, sla),
    }


# ------------------------------------------------------------------------------------------- words
def _paragraphs(schedule: Schedule, study_id: int | None, *lines: str) -> str:
    where = f"Schedule {schedule.name}" + ("" if study_id is None else f", study {study_id}")
    return "\n".join((f"{where}.", *filter(None, lines)))


def _first_line(words: str) -> str:
    return next(iter(words.splitlines()), "")


def _kept(verdict: SlaVerdict) -> str:
    tightest = _tightest(verdict)
    return f"{_SLA[verdict.outcome]}{': ' if tightest else ''}{tightest}."


def _tightest(verdict: SlaVerdict) -> str:
    """What is told of the term that is kept least, or broken most."""
    return "" if verdict.tightest is None else verdict.tightest.reason


def _cause(cause: Cause) -> str:
    return f"- {cause.words} ({cause.likelihood})"


def drifted(  # noqa: PLR0913 - whose, since when, by how much, and why
    schedule: Schedule,
    model: str,
    study_id: int,
    drift: Drift,
    champion: Judged,
    *,
    edited: Edited | None = None,
) -> tuple[str, str]:
    """Title and text. ``edited``: what was measured before is what was promoted, and tonight what
    somebody has made of it."""
    way = "worse" if drift.worse else "better"
    title = f"{model}: the champion is {way} than it was: {drift.gravest.words}"
    causes = [_cause(cause) for cause in drift.causes]
    known = "Likely cause" if len(causes) == 1 else "Likely causes"
    text = _paragraphs(
        schedule,
        study_id,
        f"By how much: {drift.words}.",
        f"Compared with: study {drift.since}, measured {when(drift.since_at)}.",
        "\n".join([f"{known}:", *causes]) if causes else "",
        edited.diff.rstrip() if edited is not None else "",
        f"How sure: {drift.sure}.",
        _kept(champion.verdict),
        "Next: "
        + ("undo what changed, if it was not meant" if causes else "look for what changed")
        + ". A search for something better was begun: if no notice of it follows, nothing better"
        f" was found. `autotune show {study_id}` and `autotune show {drift.since}` have both"
        " measurements.",
        "" if edited is None else f"If what is in service now was meant, leave it: {_UNASKED}.",
    )
    return title, text


def cause_of(edited: Edited) -> Cause:
    if edited.promotion is None:
        words = edited.told
    else:
        how = "was changed by hand" if edited.lasting else "is not what the server was sent"
        words = f"the configuration in service {how} since promotion {edited.promotion}"
        words = f"{words}: {edited.words}"
    return Cause(kind="edited", words=words, likelihood=Likelihood.LIKELY)


_UNASKED = (
    "nothing is promoted over it without anyone asking. Under the policy auto too, what is found"
    " better waits for approval, or is told of"
)


def changed_in_service(
    schedule: Schedule, model: str, study_id: int, edited: Edited, *, measured: bool
) -> tuple[str, str]:
    """Of a target that somebody has changed since the promotion there, or that nothing was promoted
    to and which is not as the study."""
    text = _paragraphs(
        schedule,
        study_id,
        f"What: {edited.told}.",
        _since(edited),
        edited.diff.rstrip(),
        "Tonight's champion, trial 0, is what is in service now."
        if measured
        else "The study's space cannot say that, so trial 0 is not what is in service: how that"
        " does is not known.",
        f"Next: if it was not meant, undo it. If it was, leave it: {_UNASKED} (`autotune promote"
        f" {study_id} --trial N --target … --anyway` puts it there).",
    )
    return f"{model}: {edited.told}", text


def _since(edited: Edited) -> str:
    if edited.promotion is None:
        return "Nothing that was promoted is in service there."
    since = f"Since promotion {edited.promotion}"
    if edited.lasting:
        return f"{since} somebody has changed it."
    return (
        f"{since} somebody has loaded another, or the server was restarted, which loses what it was"
        " sent."
    )


def fails(schedule: Schedule, model: str, study_id: int, champion: Trial) -> tuple[str, str]:
    """Of a champion that does not load, or that the server died under."""
    text = _paragraphs(
        schedule,
        study_id,
        f"What: the configuration in service ({champion.candidate}) fails where it is measured:",
        champion.reason,
        "Next: see to it that it still works in service. A search for one that takes its place was"
        f" begun and tells what it finds; `autotune show {study_id}` has what was measured.",
    )
    return f"{model}: the champion fails: {_first_line(champion.reason)}", text


def unanswered(
    schedule: Schedule, model: str, study_id: int | None, reason: str, over: str
) -> tuple[str, str]:
    """Of a champion that misses the SLA, in a night whose window ended it."""
    text = _paragraphs(
        schedule,
        study_id,
        f"What: the champion misses the SLA: {reason}.",
        f"{over[0].upper()}{over[1:]}, before a search had found one that meets it, or none.",
        "Next: the next run goes on with what was measured; a longer window (`autotune schedule"
        f" add --window-minutes`), or `autotune schedule run {schedule.name}`, lets it end.",
    )
    return f"{model}: the champion misses the SLA, and the window was over before an answer", text


_TITLES = {
    Outcome.BETTER: "a better configuration was found",
    Outcome.PROPOSED: "a better configuration waits for your approval",
    Outcome.PROMOTED: "a better configuration is in service",
    Outcome.ROLLED_BACK: "a better configuration did not hold in service",
}


def better(  # noqa: PLR0913 - who won, against whom, by how much, and what became of it
    schedule: Schedule,
    model: str,
    study_id: int,
    *,
    champion: Trial,
    challenger: Judged,
    verdict: Verdict,
    outcome: Outcome,
    promotion_id: int | None,
    note: str = "",
    unsure: bool = False,
) -> tuple[str, str]:
    """``unsure``: whether it keeps its SLA in service is not known."""
    number = challenger.number
    title = f"{model}: {_TITLES[outcome]}: {verdict.words}"
    text = _paragraphs(
        schedule,
        study_id,
        f"What: trial {number} ({challenger.trial.candidate}) instead of the champion"
        f" ({champion.candidate}).",
        f"Why: {verdict.words}.",
        f"The champion fails: {champion.reason}" if champion.state is TrialState.FAILED else "",
        f"By how much: {'; '.join(verdict.reasons[1:])}." if verdict.reasons[1:] else "",
        _kept(challenger.verdict),
        f"Note: {note}." if note else "",
        f"Next: {_next(outcome, model, study_id, number, promotion_id, unsure=unsure)}",
    )
    return title, text


def _next(  # noqa: PLR0913 - what became of which trial
    outcome: Outcome,
    model: str,
    study_id: int,
    number: int,
    promotion_id: int | None,
    *,
    unsure: bool,
) -> str:
    if outcome is Outcome.PROPOSED:
        return (
            f"`autotune promote {promotion_id}` puts it into service, and so does the dashboard,"
            " where it can be rejected too."
        )
    if outcome is Outcome.PROMOTED:
        if unsure:
            return f"watch it, since its check in service left that open. {_rollback(model)}"
        return f"nothing. {_rollback(model)}"
    if outcome is Outcome.ROLLED_BACK:
        return (
            "what was in service before is again. `autotune history"
            f" {model}` tells what went wrong."
        )
    trial = f"{study_id} --trial {number}"
    return (
        f"`autotune promote {trial} --target DIR` puts it into service,"
        f" `autotune export {trial} --out DIR` writes its files."
    )


def _rollback(model: str) -> str:
    return f"`autotune rollback {model}` would undo it."


def lost(  # noqa: PLR0913 - whose, what was measured, and what there is against it
    schedule: Schedule,
    model: str,
    study_id: int,
    decision: Decision,
    *,
    champion: Judged | None,
    failed: str,
    against: str = "",
) -> tuple[str, str]:
    """``champion`` None: it ``failed``, for that reason. ``against``: what there is against the one
    that the search came to, where it came to one."""
    nearest = decision.of(decision.nearest_miss)
    limits = "" if nearest is None else _kept(nearest.verdict)
    sure = champion is None or champion.outcome is Kept.MISSES
    what = "meets the SLA any more" if sure and not against else "clearly meets the SLA"
    tried = len(decision.judged)
    text = _paragraphs(
        schedule,
        study_id,
        f"What: none of {tried} measured configurations {what}; the champion stays as it is.",
        f"The champion: {_kept(champion.verdict)}"
        if champion
        else f"The champion fails{': ' if failed else '.'}{failed}",
        f"One came near: {against}." if against else "",
        f"The nearest miss is trial {nearest.number} ({nearest.trial.candidate}). {limits}"
        if nearest is not None and nearest.number
        else "",
        "Next: look at what has changed since it was met (`autotune history"
        f" {model}`); else the limit, the rate, the space or the hardware has to give:"
        f" `autotune show {study_id}`.",
    )
    return f"{model}: no configuration {what}", text


def failed(
    schedule: Schedule, model: str, study_id: int | None, error: str, promotion_id: int | None
) -> tuple[str, str]:
    again = f"`autotune schedule run {schedule.name}` runs it again"
    service = (
        "what is in service was left as it is"
        if promotion_id is None
        else f"`autotune history {model}` tells what became of promotion {promotion_id}"
    )
    text = _paragraphs(
        schedule,
        study_id,
        f"What: {error}",
        f"Next: mend that; {again}, else it is due as scheduled."
        f" What was measured is kept, and {service}.",
    )
    return f"{model}: tonight's run failed: {_first_line(error)}", text


def missed(schedule: str, why: str) -> tuple[str, str]:
    """Of a run that never began."""
    lines = (
        f"Schedule {schedule}.",
        f"What: nothing was measured: {why}.",
        "Next: see to it that a worker is up and its machine is free when this is due, or give it a"
        f" longer window; `autotune schedule run {schedule}` runs it now.",
        "If more are missed in a row, that is not told again.",
    )
    title = f"schedule {schedule}: a run was missed: {_first_line(why)}"
    return title, "\n".join(lines)


def payload(
    schedule: Schedule, model: str, run_id: int, study_id: int | None, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """What a notice carries for programs."""
    return {
        "schedule": schedule.name,
        "model": model,
        "run": run_id,
        "study": study_id,
        "night": dict(summary),
    }
