"""The end of a job's log, as those may read it who operate the service."""

from __future__ import annotations

from pathlib import Path

from autotune.bootstrap.job_logs import TAIL_BYTES, tail


def written(folder: Path, text: str) -> Path:
    path = folder / "job-1-1000.log"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_a_short_log_is_whole_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert tail(written(tmp_path, "first\nlast é\n")) == "first\nlast é\n"
    assert tail(tmp_path / "job-2-1000.log") is None


def test_of_a_long_log_the_last_lines_are_given_whole(tmp_path: Path) -> None:
    lines = [f"line {n}\n" for n in range(20_000)]
    found = tail(written(tmp_path, "".join(lines)))
    assert found is not None
    assert TAIL_BYTES - 20 < len(found) <= TAIL_BYTES
    assert found.splitlines(keepends=True) == lines[-len(found.splitlines()) :]


def test_of_a_line_without_end_its_last_letters_are_given(tmp_path: Path) -> None:
    assert tail(written(tmp_path, "x" * 10 * TAIL_BYTES)) == "x" * TAIL_BYTES


def test_secrets_are_masked_also_where_the_tail_begins_within_one(tmp_path: Path) -> None:
    secret = "at_" + "s3cret" * 8
    found = tail(written(tmp_path, f"{secret} " + "y" * (TAIL_BYTES - 20)))
    assert found is not None
    assert "s3cret" not in found
    assert tail(written(tmp_path, "to postgresql://me:pw@db/x\n")) == "to postgresql://…@db/x\n"


def test_what_is_for_a_terminal_alone_is_left_out(tmp_path: Path) -> None:
    found = tail(written(tmp_path, "\x1b[31mred\x1b[0m\tand\x07 plain\r\n"))
    assert found == "red\tand plain\n"
