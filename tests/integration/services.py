"""A real service, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.studies import Running, Tool

_URL = re.compile(r"http://([0-9.]+):(\d+)")


@dataclass(frozen=True)
class Service:
    """``autotune serve`` in a process of its own, on a free port."""

    running: Running
    host: str
    port: int

    @classmethod
    def start(cls, tool: Tool, *options: object, **variables: str) -> Service:
        running = tool.start("serve", "--port", 0, *options, **variables)
        running.until(lambda: "serving" in running.stderr(), 60, "it does not serve")
        found = _URL.search(running.stderr())
        assert found is not None
        return cls(running, found[1], int(found[2]))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None
    ) -> tuple[int, str]:
        """The answer's status and text."""
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, text = self.ask("GET", f"/api/v1{path}")
        assert status == 200, text
        return json.loads(text)

    def post(self, path: str, body: Any = None) -> Any:
        status, text = self.ask("POST", f"/api/v1{path}", body)
        assert status in (201, 202), text
        return json.loads(text)

    def submit(self, study: Path) -> int:
        """The job's number of a study file's study, whose paths lie below the service's root."""
        asked = self.post("/studies", {"definition": json.loads(study.read_text())})
        number: int = asked["job"]["id"]
        return number

    def done(self, accepted: dict[str, Any]) -> dict[str, Any]:
        """The job that a request was answered with, when it has been done."""
        job = self.until(accepted["job"]["id"], lambda job: job["ended_at"] is not None)
        assert job["state"] == "done", job
        return job

    def job(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/jobs/{number}")
        return found

    def until(self, number: int, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The job, as soon as it is so."""
        found: dict[str, Any] = {}

        def look() -> bool:
            time.sleep(0.2)  # what is measured meanwhile is to have the machine
            found.update(self.job(number))
            return condition(found)

        self.running.until(look, 180.0, f"job {number} is not as wanted")
        return found
