"""What an earlier run of a study came to, which a later one must not differ from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.errors import InputRefused
from autotune.core.variants import Variant, VariantRecord
from search_spaces.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """``variants`` are those of the earlier run; ``only`` these candidates are to be served again
    (None: any of the space's may be)."""

    variants: Sequence[VariantRecord] = ()
    only: Sequence[Candidate] | None = None

    def known(self, target: str, variant: Variant) -> VariantRecord | None:
        same = (each for each in self.variants if (each.target, each.variant) == (target, variant))
        return next(same, None)

    def refuse_another(self, record: VariantRecord) -> None:
        """InputRefused where a variant that could be measured before cannot be had any more, or is
        another artefact: stored measurements and new ones would not be of the same thing."""
        known = self.known(record.target, record.variant)
        if known is None or known.refused:
            return
        if record.refused:
            raise InputRefused(
                f"the variant {record.variant} can no longer be built", value=record.refused
            )
        if known.digest not in ("", record.digest):
            tools = ", ".join(f"{name} {version}" for name, version in known.tools.items())
            raise InputRefused(
                f"the variant {record.variant}, built again, would not be what the study measured",
                value=f"digest {record.digest[:12]}, not {known.digest[:12]}",
                next_step=f"it was built by {tools}; are its calibration data and its evaluation"
                " data what they were?",
            )
