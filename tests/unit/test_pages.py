"""The pages of trials, jobs, schedules, nights, models and promotions, as they are laid out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.utils
import pytest
import structlog
from dash import html
from dash.development.base_component import Component

from autotune.bootstrap.jobs import folder_name
from autotune.core.access import Identity, Role
from autotune.core.errors import InputRefused, StoreFailed
from autotune.core.jobs import JobState
from autotune.core.promotions import AuditEntry, PromotionState
from autotune.core.schedules import Policy
from autotune.service_ports import Desks
from dashboards.web.identity import asked_by
from dashboards.web.operators import for_operators
from dashboards.web.pages import (
    PAGES,
    compare,
    job,
    jobs,
    models,
    promotions,
    run,
    schedules,
    scheduling,
    told,
    trial,
)
from dashboards.web.pages.trial_parts import versus
from dashboards.web.parts import acts
from dashboards.web.parts.acts import Act, Question
from dashboards.web.shell import who_looks
from tests.service_app import Service
from tests.service_shown import fill
from tests.shown import parts_of

OPERATOR = Identity(name="dana", role=Role.OPERATE)
VIEWER = Identity(name="eve", role=Role.VIEW, token="3f")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    service = Service.in_folder(tmp_path_factory.mktemp("pages"))
    fill(service)
    return service


@pytest.fixture(scope="module")
def desks(service: Service) -> Desks:
    return service.desks()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Desks]:
    service = Service.in_folder(tmp_path)
    yield service.desks()
    service.store.trials.close()


class OneTrialAtATime:
    """A studies' desk that does not read all trials of a study."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        assert name != "study", "all trials were read"
        return getattr(self._desk, name)


def text(component: Any) -> str:
    """As it is sent to the browser."""
    return json.dumps(component, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)


def of_trial(desks: Desks, number: int, study: str = "1") -> str:
    return text(trial.layout(desks, {"reference": study, "number": str(number)}))


# ------------------------------------------------------------------------------------- trials
def test_the_picks_page_gives_the_decisions_reasons(desks: Desks) -> None:
    page = of_trial(desks, 5)
    assert "This is the pick" in page
    assert "trial 5 is picked (cheapest)" in page
    assert "from its exported files" in page


def test_another_trials_page_says_what_it_lacks_and_where_the_pick_is(desks: Desks) -> None:
    page = of_trial(desks, 2)
    assert "Not the pick. It misses the SLA" in page
    assert "/study/1/trial/5" in page
    assert "Against the pick" in page


def test_a_trial_without_measurements_says_why(desks: Desks) -> None:
    page = of_trial(desks, 14)
    assert "It failed: ran out of memory" in page
    assert "It has no measurement." in page
    assert "How its requests fared" not in page
    assert "Against the pick" not in page


def test_a_trial_of_a_study_that_runs_is_not_called_beaten(desks: Desks) -> None:
    page = of_trial(desks, 5, study="2")
    assert "The study has not decided yet" in page
    assert "Not the pick" not in page


def test_a_measurement_that_is_not_believed_is_listed_with_its_reason(desks: Desks) -> None:
    assert "the load generator fell behind its schedule" in of_trial(desks, 3)


def test_a_trials_page_and_two_compared_read_no_other_trial(desks: Desks) -> None:
    careful = replace(desks, studies=OneTrialAtATime(desks.studies))
    of_trial(careful, 5)
    compare.layout(careful, {"reference": "1", "a": "0", "b": "5"})


@pytest.mark.parametrize("number", ["", "x", "-1", "1e3", "٣", "9" * 30])
def test_what_is_no_trials_number_is_refused(desks: Desks, number: str) -> None:
    with pytest.raises(InputRefused, match="by its number"):
        trial.layout(desks, {"reference": "1", "number": number})


def test_two_trials_that_were_run_in_turn_show_it_from_the_side_asked_for(desks: Desks) -> None:
    page = text(compare.layout(desks, {"reference": "1", "a": "5", "b": "7"}))
    assert "Trial 7 is" in page
    assert "−3.0%" in page  # of the stored +3.1% from 7 to 5
    assert "not run against each other" not in page
    other = text(compare.layout(desks, {"reference": "1", "a": "0", "b": "5"}))
    assert "autotune compare 1 0 5" in other


def test_a_change_stands_beside_the_values_that_it_is_of_and_apart_from_runs_in_turn(
    desks: Desks,
) -> None:
    outline = desks.studies.outline("1")
    one, other = (trial.read(desks, 1, n, outline.study.sla, samples=False) for n in (5, 7))
    rows = versus(one, other, outline)
    assert [row.metric for row in rows if row.in_turn]
    for row in rows:
        before, after = one.metric(row.metric), other.metric(row.metric)
        if row.contrast is not None and before and after is not None:
            assert row.contrast.effect == pytest.approx(after / before - 1), row.metric
            assert row.contrast.interval is None


# -------------------------------------------------------------------------------- empty states
@pytest.mark.parametrize(
    ("shown", "next_step"),
    [
        (lambda d: jobs.listed(jobs.read(d)), "POST /api/v1/studies"),
        (lambda d: schedules.listed(d.schedules.schedules()), "autotune schedule add"),
        (lambda d: models.listed(()), "autotune promote"),
        (lambda d: promotions.listed(d.promotions.promotions()), "autotune promote"),
        (lambda d: told.audit_listed(d.promotions.audit()), "leave a line here"),
        (lambda d: told.notices_listed(d.notices()), "AUTOTUNE_WEBHOOK_URL"),
    ],
)
def test_where_there_is_nothing_it_is_said_what_to_do(
    bare: Desks, shown: Any, next_step: str
) -> None:
    assert next_step in text(shown(bare))


# --------------------------------------------------------------------------------------- jobs
def test_the_jobs_page_says_what_came_of_what_ended_well(tmp_path: Path) -> None:
    service = Service.in_folder(tmp_path)
    study_id = service.finished_study("ocr")
    store = service.store
    job = service.queued_job("ocr")
    store.jobs.claim("w", ttl_s=60, measuring=True)
    store.jobs.set_study(job, study_id)
    store.jobs.end(job, "w", JobState.DONE, exit_code=0)
    assert "trial 5 is the pick" in text(jobs.listed(jobs.read(service.desks())))
    store.trials.close()


def test_a_job_that_was_put_back_says_why_it_waits(tmp_path: Path) -> None:
    service = Service.in_folder(tmp_path)
    job = service.queued_job("ocr")
    service.store.jobs.claim("w", ttl_s=60, measuring=True)
    why = "its process could not be begun: No space left on device"
    service.store.jobs.end(job, "w", JobState.QUEUED, reason=why)
    assert why in text(jobs.listed(jobs.read(service.desks())))
    service.store.trials.close()


def test_a_device_says_for_which_job_it_is_held(desks: Desks) -> None:
    page = text(jobs.listed(jobs.read(desks)))
    assert re.search(r'held for ".*?job 1, ocr-large', page)
    assert "search: measuring" in page


def test_however_many_wait_the_one_that_runs_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LATEST", 2)
    service = Service.in_folder(tmp_path)
    first, *_ = [service.queued_job(f"study-{n}") for n in range(4)]
    service.store.jobs.claim("w", ttl_s=60, measuring=True)
    for _ in range(2):
        service.store.jobs.cancel(service.queued_job("mistaken"))
    page = text(jobs.listed(jobs.read(service.desks())))
    assert f"/jobs/{first}" in page
    assert "study-3" in page
    assert "The newest 2 are listed." in page
    service.store.trials.close()


def test_a_jobs_page_says_what_came_of_it_and_gives_its_log_to_operators_alone(
    service: Service, desks: Desks
) -> None:
    failed = next(each for each in desks.jobs.jobs() if each.state is JobState.FAILED)
    logs = service.settings.service_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{folder_name(failed)}.log").write_text("<b>it says</b> why\n")
    held = for_operators(desks)
    with asked_by(OPERATOR):
        page = text(job.layout(held, {"job": str(failed.id)}))
    assert "the model repository has no model linear" in page
    assert "<b>it says</b> why" in page  # as text: React writes it out
    with asked_by(VIEWER):
        page = text(job.layout(held, {"job": str(failed.id)}))
    assert "the model repository has no model linear" in page
    assert "it says" not in page
    assert "a token of the role operate" in page


def test_a_job_that_waits_or_was_done_elsewhere_has_no_log(service: Service) -> None:
    with asked_by(OPERATOR):
        pages = {
            each.state: text(job.layout(service.desks(), {"job": str(each.id)}))
            for each in service.desks().jobs.jobs()
        }
    assert "It was not begun." in pages[JobState.QUEUED]
    assert "There is no log of it here." in pages[JobState.DONE]
    assert '"data-act": "cancel"' in pages[JobState.RUNNING]


# ------------------------------------------------------------------------------ nights, promotions
def test_a_nights_page_tells_drift_with_its_likely_cause_and_the_verdict(desks: Desks) -> None:
    page = text(run.layout(desks, {"run": "9"}))
    assert "No, it is worse: p95 33.8 to 41.7 ms" in page
    assert "Triton went from 2.50.0 to 2.51.0" in page
    assert "The challenger wins: saturation +12.0%" in page
    assert "/promotions/4" in page


def test_a_night_that_failed_says_why_alone(desks: Desks) -> None:
    page = text(run.layout(desks, {"run": "4"}))
    assert "taken by other processes" in page
    assert "Is the champion still" not in page


def test_the_steps_of_a_promotion_are_one_line_of_the_audit() -> None:
    steps = [
        AuditEntry(id=n, at=at, who="dana", action=action, subject=subject)
        for n, (at, action, subject) in enumerate(
            [
                (90_000.0, "rolled back", "promotion 2"),
                (1_030.0, "done", "promotion 2"),
                (1_020.0, "superseded", "promotion 1"),
                (1_010.0, "begun", "promotion 2"),
                (1_000.0, "pause", "schedule nightly"),
                (990.0, "pause", "schedule nightly"),
            ]
        )
    ]
    lines = parts_of(told.audit_listed(steps), html.Tr)[1:]
    assert ["begun" in text(line) for line in lines] == [False, True, False, False, False]
    assert "its 2 steps" in text(lines[1])


def test_a_schedule_of_a_zone_that_is_unknown_here_is_not_called_paused(desks: Desks) -> None:
    view = replace(desks.schedules.schedule("nightly"), next_at=None)
    assert "does not know the time zone Europe/Berlin" in text(schedules.listed([view]))
    assert "paused" in text(schedules.listed([desks.schedules.schedule("weekly")]))


def test_approving_says_whether_anything_is_replaced(service: Service) -> None:
    desks = service.desks()
    assert "replaces what is in service" in text(promotions.ACTS["approve"].ask(desks, "4").says)
    assert promotions.puts_the_first_there("--- /dev/null\n+++ linear/config.pbtxt\n+a: 1\n")
    assert not promotions.puts_the_first_there("")


def test_every_page_is_laid_out_at_its_address(desks: Desks) -> None:
    asked = {"reference": "1", "number": "5", "name": "nightly", "run": "1", "model": "linear"}
    asked["job"] = "1"
    for page in PAGES:
        assert isinstance(page.layout(desks, {**asked, "promotion": "2"}), Component), page.path


# ------------------------------------------------------------------------------------------ acts
def test_only_those_who_may_operate_find_buttons(desks: Desks) -> None:
    found = desks.promotions.promotion(4)
    with asked_by(OPERATOR):
        assert '"data-act": "approve"' in text(promotions.told(found))
    with asked_by(VIEWER):
        page = text(promotions.told(found))
    assert "data-act" not in page
    assert "a token of the role operate" in page


def test_no_two_pages_have_acts_of_one_name() -> None:
    names = [name for page in PAGES for name in page.acts]
    assert len(names) == len(set(names))


def test_every_act_asks_before_it_does_anything(desks: Desks) -> None:
    subjects = {
        "schedule": "1",
        "propose": "1/5",
        "cancel": "1",
        "approve": "4",
        "reject": "4",
        "roll-back": "linear",
    }
    for page in PAGES:
        for name, act in page.acts.items():
            assert act.ask(desks, subjects.get(name, "nightly")).title, name


@pytest.mark.parametrize("on", ["", "../1", "9" * 30, "1 or 1", "nobody"])
def test_what_an_act_cannot_be_about_is_refused(desks: Desks, on: str) -> None:
    for page in PAGES:
        for act in page.acts.values():
            with pytest.raises(InputRefused):
                act.ask(desks, on)


class Dialogs:
    """Takes the callbacks that `acts.register` gives a Dash application."""

    def __init__(self, desks: Desks, known: dict[str, Act]) -> None:
        self._found: list[Any] = []
        acts.register(self, desks, known)  # type: ignore[arg-type]

    def callback(self, *_wiring: Any, **_options: Any) -> Any:
        return self._found.append

    async def ask(self, **asked: Any) -> str:
        return text(await self._found[0](asked))

    async def do(self, **given: Any) -> tuple[str, Any]:
        said, done = await self._found[1]({"fields": {}, **given}, 0)
        return text(said), done


def _asked(_desks: Desks, _on: str) -> Question:
    return Question(title="Try", says=(), yes="Do it")


def test_a_study_is_scheduled_and_held_against_what_a_request_may_name(tmp_path: Path) -> None:
    service = Service.in_folder(tmp_path)
    service.finished_study("ocr")
    stranger = {**service.definition("odd"), "server": {"launch": "docker", "image": "triton:1"}}
    service.store.trials.create_study("odd", stranger, "d")
    desks, act = service.desks(), scheduling.ACTS["schedule"]
    given = {field.name: field.value for field in act.ask(desks, "1").fields}
    assert "/schedules/ocr-nightly" in text(act.do(desks, "1", given, "dana"))
    made = desks.schedules.schedule("ocr-nightly").schedule
    assert (made.cron, made.policy, made.created_by) == ("0 3 * * *", Policy.REPORT, "dana")
    assert made.definition == desks.studies.outline("1").record.definition
    refused = {
        "of that name": ("1", {}),
        "image to launch": ("2", {"name": "odd"}),
        "needs a target": ("1", {"name": "a", "policy": "auto"}),
        "report, propose, auto": ("1", {"name": "a", "policy": "never"}),
        "below the service's root": ("1", {"name": "a", "repository": "/etc"}),
        "cron": ("1", {"name": "a", "cron": "at three"}),
    }
    for words, (on, other) in refused.items():
        with pytest.raises(InputRefused, match=words):
            act.do(desks, on, {**given, **other}, "dana")
    assert [view.schedule.name for view in desks.schedules.schedules()] == ["ocr-nightly"]
    service.store.trials.close()


@pytest.mark.anyio
async def test_whoever_may_only_look_is_refused_whatever_is_sent(desks: Desks) -> None:
    done: list[str] = []
    act = Act(ask=_asked, do=lambda _d, on, _given, _by: done.append(on))
    dialogs = Dialogs(desks, {"try": act})
    for who in (VIEWER, None):
        with asked_by(who):
            said, _ = await dialogs.do(act="try", on="1")
        assert "may look" in said
    assert done == []


@pytest.mark.anyio
async def test_an_act_is_done_in_the_name_of_who_asks_and_told(desks: Desks) -> None:
    act = Act(ask=_asked, do=lambda _d, on, given, by: f"{by} did {on}: {given['why']}")
    with asked_by(OPERATOR):
        said, done = await Dialogs(desks, {"try": act}).do(act="try", on="1", fields={"why": "so"})
    assert "dana did 1: so" in said
    assert done == 1


@pytest.mark.anyio
async def test_a_refusal_is_told_in_the_dialog_which_may_be_tried_again(desks: Desks) -> None:
    def refuse(*_: Any) -> Any:
        raise InputRefused("not on a Sunday", next_step="wait a day")

    with asked_by(OPERATOR):
        dialogs = Dialogs(desks, {"try": Act(ask=_asked, do=refuse)})
        said, _ = await dialogs.do(act="try", on="1")
        other, _ = await dialogs.do(act="none", on="1")
    assert "not on a Sunday" in said
    assert "wait a day" in said
    assert '"data-do"' in said
    assert "no such act" in other


@pytest.mark.anyio
@pytest.mark.parametrize("words", ["x" * 2001, "\0", "half a \ud800"])
async def test_what_no_field_takes_is_refused_whoever_sends_it(desks: Desks, words: str) -> None:
    done: list[Any] = []
    act = Act(ask=_asked, do=lambda *given: done.append(given))
    dialogs = Dialogs(desks, {"try": act})
    with asked_by(OPERATOR):
        said = [
            await dialogs.do(act="try", on="1", fields={"why": words}),
            await dialogs.do(act="try", on=words),
        ]
    assert ["at most 2000 letters" in each for each, _ in said] == [True, True]
    assert done == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreFailed("locked", value="/srv/secret.db"), "The database does not answer."),
        (RuntimeError("the secret is hunter2"), "This did not work."),
    ],
)
async def test_what_fails_under_an_act_is_told_in_its_dialog_without_its_words(
    desks: Desks, error: Exception, words: str
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    dialogs = Dialogs(desks, {"try": Act(ask=fails, do=fails)})
    with asked_by(OPERATOR), structlog.testing.capture_logs() as logged:
        said = [await dialogs.ask(act="try", on="1"), (await dialogs.do(act="try", on="1"))[0]]
    assert [words in each for each in said] == [True, True]
    assert "secret" not in str(said)
    assert len(logged) == 2


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_session_shows_its_name_and_the_way_out() -> None:
    with asked_by(VIEWER):
        assert "eve (view)" in text(who_looks())
        assert '"/logout"' in text(who_looks())
    with asked_by(OPERATOR):  # nobody logged in: no token was needed
        assert who_looks() == []


def test_a_promotion_in_service_may_be_rolled_back_and_a_decided_one_not_approved(
    desks: Desks,
) -> None:
    with asked_by(OPERATOR):
        assert '"data-act": "roll-back"' in text(promotions.told(desks.promotions.promotion(2)))
    assert desks.promotions.promotion(3).state is PromotionState.REJECTED
    with pytest.raises(InputRefused, match="decided on already"):
        promotions.ACTS["approve"].ask(desks, "3")
