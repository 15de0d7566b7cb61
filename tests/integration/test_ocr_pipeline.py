"""The bundled OCR pipeline, served for real: JPEG bytes in, texts out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.adapters.triton.reference import BasicOutputCheck, HttpInfer
from autotune.adapters.triton.servers import Servers
from autotune.bootstrap.models import served_model
from autotune.core.errors import CandidateFailed
from autotune.core.study import Study
from autotune.ports import Server
from autotune.studyfile import read_study_file
from loadgen.inputs import build_samples
from search_spaces.candidate import Candidate

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr" / "pipeline.yaml"
LINES = 30


@dataclass(frozen=True)
class Served:
    study: Study
    server: Server

    def read(self, samples) -> list[str]:
        infer = HttpInfer(self.server.endpoint, self.server.interface())
        answers = infer(samples, at_once=4)
        return [answer["TEXT"].item().decode() for answer in answers]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Served]:
    study = read_study_file(EXAMPLE)
    work = tmp_path_factory.mktemp("ocr")
    model = served_model(study, cache_dir=cache_dir, work_dir=work / "models", say=print)
    server = Servers(cache_dir=cache_dir, work_dir=work).tuned(study.server, model)
    try:
        server.start()
        server.apply(Candidate({}))
        yield Served(study, server)
    finally:
        server.close()


def test_it_reads_most_lines_right(served: Served) -> None:
    assert served.study.accuracy is not None
    data, file = served.study.accuracy.data, served.study.accuracy.expected
    assert data is not None
    assert file is not None
    expected = file.read_text("utf-8").splitlines()
    samples = build_samples(served.server.interface(), data, seed=served.study.seed)
    assert len(samples) == len(expected)
    right = [
        text == wanted
        for text, wanted in zip(served.read(samples[:LINES]), expected[:LINES], strict=True)
    ]
    assert 0.75 * LINES < sum(right) <= LINES


def test_its_answers_stay_the_same_when_each_step_works_on_several_requests(
    served: Served,
) -> None:
    work = served.study.workload.inputs
    samples = build_samples(served.server.interface(), work, seed=1)[:6]
    alone = served.read(samples)
    served.server.apply(
        Candidate(
            {
                "decode.workers": 2,
                "recognize.max_batch_size": 4,
                "recognize.parameters.intra_op_thread_count": 2,
            }
        )
    )
    assert served.read(samples) == alone
    interface = served.server.interface()
    said = BasicOutputCheck().check(served.server.endpoint, interface, samples)
    assert "they are the same" in said


def test_what_is_no_image_is_that_requests_own_error(served: Served) -> None:
    (sample,) = build_samples(served.server.interface(), served.study.workload.inputs, seed=1)[:1]
    broken = {"IMAGE": sample["IMAGE"].copy()}
    broken["IMAGE"][0] = broken["IMAGE"][0][:40]
    with pytest.raises(CandidateFailed, match="no image"):
        served.read([broken])
    assert len(served.read([sample])) == 1
