"""A live Triton in explicit mode as a target, with the repository that it loads from or without."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.deploy.merging import CACHES, text_diff
from autotune.adapters.deploy.served import SENT, Known, differences
from autotune.adapters.deploy.sidecar import KEPT
from autotune.adapters.triton.config import ModelConfig, override_json, parse, read, render
from autotune.adapters.triton.control import Control
from autotune.adapters.triton.remote import Found, found, require_explicit
from autotune.adapters.triton.repository import CONFIG_FILE, files_of
from autotune.core.errors import Busy, ExportFailed, InputRefused, ServerFailed
from autotune.service_ports import Release

SENT_BYTES = 256_000_000
"""How large the files of a model may be that are sent with a load request."""
LOAD_TIMEOUT_S = 120.0


class LiveDeployment:
    """Implements `service_ports.Deployment`; whoever changes something holds `locked`.

    With a ``directory``, that is changed and the server told to load from it. Without, the
    configuration is sent in place of the file's, for as long as the server runs, together with the
    model's files where these are other than the study's own (``sends``, by model's name).
    ``states`` is a folder for locks and for the files that were sent; earlier autotunes kept there
    how the server was found. ``known``: as `DirectoryDeployment`. Every call to the server has a
    deadline.
    """

    def __init__(  # noqa: PLR0913 - the server, what it loads, what may be replaced, where to keep it
        self,
        grpc: str,
        *,
        directory: DirectoryDeployment | None,
        known: Sequence[Known] | None,
        states: Path,
        sends: frozenset[str] = frozenset(),
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self._address = grpc
        self._directory = directory
        self._known = known
        self._states = states
        self._sends = sends
        self._timeout_s = load_timeout_s
        self._control = Control(grpc, "", to_the_end=True)

    def close(self) -> None:
        self._control.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Busy if somebody else is changing the server's models, or the repository."""
        self._states.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(self._address.encode()).hexdigest()[:16]
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self._states / f"{name}.lock", timeout=0))
            except Timeout as error:
                raise Busy(
                    f"another promotion is under way on {self._address}",
                    next_step="wait until it has ended; `autotune history MODEL` tells of it",
                ) from error
            if self._directory is not None:
                stack.enter_context(self._directory.locked())
            yield

    def begun(self, label: str) -> bool:
        """Whether a promotion of that label can be undone here: without a directory, anywhere."""
        return self._directory is None or self._directory.begun(label)

    def present(self, name: str) -> ModelConfig | None:
        """A model's configuration: as its file says, or else as the server has it loaded."""
        if self._directory is not None:
            return self._directory.present(name)
        self._require_live()
        return found(self._control, [name])[name]

    # ---------------------------------------------------------------------------------- the port
    def preflight(self, release: Release) -> str:
        self._require_live()
        require_explicit(self._control)
        served = found(self._control, release.names)
        diff = self._directory.preflight(release) if self._directory is not None else None
        self._refuse_strangers(release, served)
        if diff is not None:
            return diff
        self._refuse_to_send(release)
        return "".join(
            line
            for name, wanted in _configs(release).items()
            for line in self._served_diff(name, served[name], wanted)
        )

    def before(self, release: Release) -> Mapping[str, Any]:
        return _plain(found(self._control, release.names))

    def apply(self, release: Release, *, label: str) -> str:
        kept = label
        if self._directory is not None:
            kept = self._directory.apply(release, label=label)
        self._load(release, kept)
        return kept

    def verify(self, release: Release) -> None:
        if self._directory is not None:
            self._directory.verify(release)
        for name, wanted in _configs(release).items():
            self._control.wait_until_ready(self._timeout_s, name)
            if wrong := differences(wanted, self._control.config(name)):
                raise ServerFailed(
                    f"the server does not serve {name} as it was promoted",
                    value="; ".join(wrong),
                    next_step="Does something else load its models?"
                    + (" Does it load from another repository?" if self._directory else ""),
                )

    def undoing(self, kept: str, before: Mapping[str, Any]) -> str:
        if self._directory is not None:
            return self._directory.undoing(kept)
        was = self._was(kept, before)
        here = found(self._control, list(was))
        lines = (
            text_diff(name, _told(here[name]), _told(config), ("in service", "before"))
            for name, config in was.items()
        )
        return "".join(line for each in lines for line in each)

    def restore(self, kept: str, before: Mapping[str, Any]) -> None:
        was = self._was(kept, before)
        if self._directory is None:
            self._load_all_as_before(was, kept)
            return
        self._directory.restore(kept)
        try:
            self._load_all_as_before(was, kept)
        except ServerFailed as error:
            raise ServerFailed(
                f"{error.rule}; the files are those from before, and are not loaded yet",
                value=error.value,
                next_step=error.next_step,
            ) from error

    def _was(self, kept: str, before: Mapping[str, Any]) -> Found:
        """How the server was found; nothing of a promotion that was not begun."""
        if before:
            return _found(before)
        label = Path(kept).name.removesuffix(".json")
        state = self._states / f"{label}.json"
        if state.exists():  # of an earlier autotune
            return _found(json.loads(state.read_text(encoding="utf-8")))
        if kept == label:
            return {}
        raise ExportFailed(
            "how the server was before that promotion is not kept here",
            value=str(state),
            next_step="Load its models again there, from its repository.",
        )

    def _load_all_as_before(self, before: Found, kept: str) -> None:
        for name in reversed([name for name, config in before.items() if config is None]):
            self._control.unload(self._timeout_s, model=name)
        unchanged = self._unchanged(before, kept)
        for name, config in before.items():
            if config is not None and name not in unchanged:
                self._load_as_before(name, config)

    def _unchanged(self, before: Found, kept: str) -> set[str]:
        """Models whose files were not replaced and that are served as they were; none where files
        may have been sent."""
        if self._directory is None:
            return set()
        served = found(self._control, list(before))
        replaced = self._directory.replaced(kept)
        return {name for name in before if name not in replaced and served[name] == before[name]}

    def recover(self) -> None:
        if self._directory is not None:
            self._directory.recover()

    # ----------------------------------------------------------------------------------- parts
    def _load(self, release: Release, kept: str) -> None:
        """What is not served as it should be; an ensemble after its steps."""
        changed = set() if self._directory is None else set(self._directory.replaced(kept))
        for name, wanted in _configs(release).items():
            as_wanted = self._control.loaded(name) and not differences(
                wanted, self._control.config(name)
            )
            if as_wanted and name not in changed | self._sends:
                continue
            try:
                self._load_one(release, name, wanted)
            except ServerFailed as error:
                raise ServerFailed(
                    f"the server cannot load {name} as it was to be promoted: {error.rule}",
                    value=error.value,
                ) from error

    def _load_one(self, release: Release, name: str, wanted: ModelConfig) -> None:
        if self._directory is not None:
            self._control.load(None, self._timeout_s, name)
            return
        if name not in self._sends:
            self._control.load(override_json(wanted), self._timeout_s, name)
            return
        files = _contents(release.repository / name)
        marked = _marked(wanted, files)
        self._keep_sent(release.repository / name, marked)
        self._control.load(override_json(marked), self._timeout_s, name, files=files)

    def _sent(self, config: ModelConfig) -> Path:
        """By digests: what a server says is no path."""
        said = (config.name, config.parameters[SENT].string_value)
        name, files = (hashlib.sha256(each.encode()).hexdigest()[:16] for each in said)
        return self._states / "sent" / name / files

    def _keep_sent(self, folder: Path, marked: ModelConfig) -> None:
        """For a rollback to it; of each model the last few."""
        kept = self._sent(marked)
        if not kept.is_dir():
            fresh = kept.with_name(f"{kept.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(folder, fresh)
            fresh.rename(kept)
        os.utime(kept)
        held = sorted(kept.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in held[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def _load_sent_before(self, name: str, config: ModelConfig) -> None:
        kept = self._sent(config)
        if not kept.is_dir():
            raise ExportFailed(
                f"the files of {name} that had been sent to the server before are not kept here",
                value=str(kept),
                next_step="Promote the trial that brought them once more.",
            )
        files = _contents(kept)
        self._control.load(override_json(config), self._timeout_s, name, files=files)

    def _load_as_before(self, name: str, config: ModelConfig) -> None:
        """As the files say that were put back; without them, with those that had been sent, or else
        from the server's own, and where these say something else, under the configuration that it
        had."""
        own = None if self._directory is None else self._directory.present(name)
        if own is None and SENT in config.parameters:
            self._load_sent_before(name, config)
            return
        self._control.load(None, self._timeout_s, name)
        if own is None and self._control.config(name) != config:
            self._control.load(override_json(config), self._timeout_s, name)
        if wrong := differences(own or config, self._control.config(name)):
            raise ServerFailed(
                f"the server does not serve {name} as it did before",
                value="; ".join(wrong),
                next_step="Does something else load its models?",
            )

    def _served_diff(
        self, name: str, here: ModelConfig | None, wanted: ModelConfig
    ) -> Iterator[str]:
        """Nothing where the server serves it so already; in the words of a file where one is known
        that amounts to what is served, since a server completes what it loads."""
        if here is None:
            yield from text_diff(name, "", render(wanted))
        elif differences(wanted, here):
            same = [each for each in self._known_of(name) if not differences(each, here)]
            yield from text_diff(name, render([*same, here][0]), render(wanted))

    def _known_of(self, name: str) -> list[ModelConfig]:
        return [each.configs[name] for each in self._known or () if name in each.configs]

    def _require_live(self) -> None:
        if not self._control.live():
            raise ServerFailed(
                f"no live Triton answers at {self._address}",
                next_step="Check the target's address (host:port of its gRPC service), and that the"
                " server is up.",
            )

    # --------------------------------------------------------------------------------- refusals
    def _refuse_strangers(self, release: Release, served: Found) -> None:
        """A configuration that was loaded by somebody else: neither as the file says, nor as the
        study found it, nor as a promotion left it."""
        if self._known is None:
            return
        for name, wanted in _configs(release).items():
            here = served[name]
            own = self._directory.present(name) if self._directory is not None else None
            known = [wanted, *self._known_of(name)]
            known += [] if own is None else [own]
            if here is not None and all(differences(each, here) for each in known):
                raise InputRefused(
                    f"{name} is served with a configuration that is neither what the study found"
                    " nor that of the last promotion",
                    value="; ".join(differences(known[-1], here)),
                    next_step="Somebody has loaded it since. Tune it as it is now, or replace it"
                    " all the same with `autotune promote … --anyway`.",
                )

    def _refuse_to_send(self, release: Release) -> None:
        for name in self._sends:
            size = sum(file.stat().st_size for file in files_of(release.repository / name))
            if size > SENT_BYTES:
                raise InputRefused(
                    f"the files of {name} change, and {size / 1e6:.0f} MB are too many to send to a"
                    f" server; at most {SENT_BYTES / 1e6:.0f} MB are",
                    next_step="Name the repository that the server loads from as well (--target).",
                )


def _configs(release: Release) -> dict[str, ModelConfig]:
    return {name: read(release.repository / name / CONFIG_FILE) for name in release.names}


def _contents(folder: Path) -> dict[str, bytes]:
    """A model's files by their paths in its folder, its configuration left out."""
    files = (file for file in files_of(folder) if not CACHES & set(file.parts))
    return {
        path: file.read_bytes()
        for file in files
        if (path := file.relative_to(folder).as_posix()) != CONFIG_FILE
    }


def _marked(wanted: ModelConfig, files: Mapping[str, bytes]) -> ModelConfig:
    """With a parameter that says which files were sent: for other files under an equal
    configuration Triton (2.51) loads nothing, and says that it has."""
    marked = ModelConfig()
    marked.CopyFrom(wanted)
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(path.encode() + hashlib.sha256(files[path]).digest())
    marked.parameters[SENT].string_value = whole.hexdigest()[:16]
    return marked


def _told(config: ModelConfig | None) -> str:
    return "" if config is None else render(config)


def _plain(before: Found) -> dict[str, Any]:
    """In loadable order, which the keys of stored JSON need not keep."""
    texts = {name: None if config is None else render(config) for name, config in before.items()}
    return {"models": texts, "order": list(before)}


def _found(plain: Mapping[str, Any]) -> Found:
    texts = plain["models"]
    return {
        name: None if texts[name] is None else parse(texts[name], name)
        for name in plain.get("order", texts)
    }
