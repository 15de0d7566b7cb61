from __future__ import annotations

import numpy as np
import pytest

from loadgen.results import Code
from loadgen.stream import WIDTH, StreamsReader, StreamWriter

NAN = float("nan")


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "stream.f8"
    made.write_bytes(b"")
    return made


@pytest.fixture
def writer(path):
    made = StreamWriter(path)
    yield made
    made.close()


def mark(writer, now_s, complete_s=None, **changes):
    values = {"cpu_s": 0.0, "max_in_flight": 1, "cap_hit": False, **changes}
    writer.mark(now_s, now_s if complete_s is None else complete_s, **values)


def window(path, opened_s=1.0, tail_s=0.5, cpu_opened_s=0.0):
    reader = StreamsReader([path])
    reader.read()
    return reader.window(opened_s=opened_s, cpu_opened_s=[cpu_opened_s], tail_s=tail_s)


def test_latencies_come_in_the_order_in_which_requests_were_due(path, writer):
    writer.settled(1, 0.2, 0.2, 0.3, Code.OK)
    writer.settled(0, 0.1, 0.1, 0.4, Code.OK)
    writer.settled(2, 0.3, 0.3, NAN, Code.CONNECTION)
    mark(writer, 0.5)
    reader = StreamsReader([path])
    reader.read()
    assert reader.latencies_ms().tolist() == pytest.approx([300, 100])


def test_nothing_is_known_before_the_first_mark(path):
    assert window(path) is None
    reader = StreamsReader([path])
    reader.read()
    assert len(reader.latencies_ms()) == 0


def test_a_window_reaches_up_to_the_last_mark_when_all_is_settled(path, writer):
    writer.settled(0, 1.1, 1.1, 1.2, Code.OK)
    mark(writer, 1.5)
    mark(writer, 2.0, 1.9, cpu_s=0.3, max_in_flight=7, cap_hit=True)
    run = window(path, cpu_opened_s=0.1)
    assert run is not None
    assert (run.opened_s, run.closed_s) == (1.0, 1.9)
    assert (run.max_in_flight, run.cap_hit) == (7, True)
    assert run.generator_cpu == pytest.approx(0.2)


def test_a_window_ends_before_the_first_request_that_is_open(path, writer):
    writer.sent(0, 1.7, 1.7)
    writer.settled(1, 1.8, 1.8, 1.9, Code.OK)
    mark(writer, 2.0)
    run = window(path)
    assert run is not None
    assert run.closed_s == 1.7


def test_a_request_that_is_open_for_longer_than_the_tail_is_left_pending_in_the_window(
    path, writer
):
    writer.sent(0, 1.1, 1.15)
    writer.sent(1, 1.6, 1.6)
    mark(writer, 2.0)
    run = window(path)
    assert run is not None
    assert run.closed_s == 1.6
    assert run.code.tolist() == [Code.PENDING, Code.PENDING]
    assert run.sent_s[0] == 1.15
    assert np.isnan(run.done_s[0])


def test_there_is_no_window_while_its_first_requests_are_open(path, writer):
    writer.sent(0, 1.0, 1.0)
    mark(writer, 1.4)
    assert window(path) is None


def test_an_answer_replaces_the_request_that_was_open(path, writer):
    writer.sent(0, 1.1, 1.1)
    mark(writer, 1.2)
    reader = StreamsReader([path])
    reader.read()
    writer.settled(0, 1.1, 1.1, 1.3, Code.OK)
    mark(writer, 2.0)
    reader.read()
    run = reader.window(opened_s=1.0, cpu_opened_s=[0.0], tail_s=0.5)
    assert run is not None
    assert (run.closed_s, run.code.tolist(), run.done_s.tolist()) == (2.0, [Code.OK], [1.3])


def test_a_request_that_was_refused_may_come_before_an_older_one(path, writer):
    writer.settled(1, 1.3, NAN, NAN, Code.UNSENT)
    mark(writer, 1.5, 1.2)
    run = window(path)
    assert run is not None
    assert (run.closed_s, run.code.tolist()) == (1.2, [Code.UNSENT])


def test_a_row_that_is_half_written_waits_for_its_rest(path, writer):
    writer.settled(0, 0.1, 0.1, 0.2, Code.OK)
    mark(writer, 0.3)
    whole = path.read_bytes()
    reader = StreamsReader([path])
    path.write_bytes(whole[:20])
    reader.read()
    assert len(reader.latencies_ms()) == 0
    path.write_bytes(whole)
    reader.read()
    assert reader.latencies_ms().tolist() == pytest.approx([100])
    assert len(whole) == 2 * 8 * WIDTH


def test_many_requests_are_kept_over_many_reads(path, writer):
    reader = StreamsReader([path])
    for number in range(1000):
        writer.settled(number, number / 1000, number / 1000, number / 1000 + 0.001, Code.OK)
        if number % 100 == 99:
            mark(writer, number / 1000)
            reader.read()
            assert len(reader.latencies_ms()) == number + 1
    assert reader.latencies_ms() == pytest.approx(1.0)


def test_a_full_disk_is_told():
    full = StreamWriter("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        mark(full, 1.0)
    full.close()


def test_the_streams_of_several_processes_are_one(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    writers = []
    for path in paths:
        path.write_bytes(b"")
        writers.append(StreamWriter(path))
    for writer, shift in zip(writers, (0.0, 0.5), strict=True):
        for number in range(3):
            due = number + shift
            writer.sent(number, due, due)
            writer.settled(number, due, due, due + 0.1 + shift, Code.OK)
    writers[0].mark(4.0, 3.0, 1.0, 2, False)
    reader = StreamsReader(paths)
    reader.read()
    assert reader.window(opened_s=0.0, cpu_opened_s=[0.0, 0.0], tail_s=0.5) is None
    assert reader.growth_qps() is None
    writers[1].mark(4.0, 2.0, 3.0, 4, True)
    reader.read()
    assert reader.latencies_ms().tolist() == pytest.approx([100, 600] * 3)
    run = reader.window(opened_s=0.0, cpu_opened_s=[0.0, 1.0], tail_s=0.5)
    assert run is not None
    assert run.scheduled_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert (run.closed_s, run.generator_cpu) == (2.0, 0.5)
    assert (run.max_in_flight, run.cap_hit) == (6, True)
    for writer in writers:
        writer.close()
