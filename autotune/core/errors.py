"""Every error that autotune raises on purpose.

    AutotuneError                rule, value, next step
    ├── InputRefused             the user's input cannot be used            (exit 2)
    │   ├── NotFound             it names something that there is not
    │   └── Conflict             what it asks for does not go with what there is
    ├── Busy                     someone else has what it needs             (later it can be done)
    │   └── MachineBusy          another study is measuring here
    ├── OutputsDiffer            the server answers other values than the model run directly
    ├── ServerFailed             the server cannot be started or is gone    (the trial fails)
    │   ├── CandidateFailed      the server lives but cannot load this candidate
    │   └── ServerCrashed        a process of it died, perhaps by chance (tried once more)
    ├── LoadFailed               the load generator itself failed           (the trial is invalid)
    ├── StoreFailed              the database cannot be read or written
    ├── ExportFailed             the export cannot be written
    └── DeliveryFailed           a notice did not reach its channel
        └── DeliveryRefused      … and would not if it were sent again
    KeyboardInterrupt
    └── Interrupted              Ctrl-C, SIGTERM or a lost terminal

A trial that fails is data; an exception that reaches the command line means that the tuner cannot
go on. `Interrupted` is no `Exception`: a library's `except Exception`, or an event loop that prints
what a callback raises, would else swallow it and the run go on, deaf to further signals.
"""

from __future__ import annotations


class _Worded(BaseException):
    """Says which rule was broken, by which value, and what to do next."""

    def __init__(self, rule: str, *, value: object = None, next_step: str = "") -> None:
        self.rule = rule
        self.value = value
        self.next_step = next_step
        super().__init__(self._text())

    def _text(self) -> str:
        text = self.rule
        if isinstance(self.value, str) and "\n" in self.value:  # another program's output
            text += ":" + "".join(f"\n    {line}" for line in self.value.strip().splitlines())
        elif self.value is not None:
            text += (
                f" (got {self.value!r})" if isinstance(self.value, str) else f" (got {self.value})"
            )
        if self.next_step:
            text += f"\n  {self.next_step}"
        return text


class AutotuneError(_Worded, Exception):
    """Says which rule was broken, by which value, and what to do next."""


class InputRefused(AutotuneError):
    """A study file, a model, an option or a path that cannot be used as given. ``place`` is the
    study's key that says so, where it is one: ``("server", "devices", 0)``."""

    def __init__(
        self,
        rule: str,
        *,
        value: object = None,
        next_step: str = "",
        place: tuple[str | int, ...] = (),
    ) -> None:
        self.place = place
        super().__init__(rule, value=value, next_step=next_step)


class NotFound(InputRefused):
    """A study, a job, a schedule, …, that is not stored."""


class Conflict(InputRefused):
    """A name that is taken, or a step that the present state does not allow."""


class Busy(AutotuneError):
    """Someone else has what is needed: what is asked for can be done when they have ended, and
    nothing of it has been begun."""


class MachineBusy(Busy):
    """Another study is measuring on this machine."""


class OutputsDiffer(AutotuneError):
    """The server's answers are not the model's: timing them would mean nothing."""


class ServerFailed(AutotuneError):
    """The server did not come up, died, or stopped answering within its deadline."""


class CandidateFailed(ServerFailed):
    """The server is alive and refused or could not load this candidate."""


class ServerCrashed(ServerFailed):
    """A process of the server was ended by a signal, or its Python backend's stub is gone, and
    nothing says that memory ran out: on a machine that is overloaded that may be chance."""


class LoadFailed(AutotuneError):
    """The load generator died or did not answer: says nothing about the candidate."""


class StoreFailed(AutotuneError):
    """The database is locked, full, of another schema, or not a database. ``told`` says it in words
    that name no place and nobody: for whoever asks over the network."""

    def __init__(
        self,
        rule: str,
        *,
        value: object = None,
        next_step: str = "",
        told: str = "the database does not answer",
    ) -> None:
        self.told = told
        super().__init__(rule, value=value, next_step=next_step)


class ExportFailed(AutotuneError):
    """The export could not be written; what was there before is as it was."""


class DeliveryFailed(AutotuneError):
    """A notice could not be delivered now. Its words hold no address: that may be a secret."""


class DeliveryRefused(DeliveryFailed):
    """A notice cannot be delivered as things are: trying again does not help."""


class Interrupted(_Worded, KeyboardInterrupt):
    """The user or the system asked the run to stop."""
