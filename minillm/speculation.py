"""Speculation for a loaded model: a drafter by its name, with the draft model or the heads that it needs.

How drafts are verified, and why an output is the same as without them, is in `minillm.speculate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from minillm import hub
from minillm.core.detokenizer import name_bytes
from minillm.speculate.draft import Drafter
from minillm.speculate.draft_model import DraftModel
from minillm.speculate.draft_tree import DraftTree
from minillm.speculate.eagle import EagleDrafter
from minillm.speculate.medusa import MedusaDrafter
from minillm.speculate.mtp import MtpDrafter
from minillm.speculate.ngram import NgramDrafter
from minillm.speculate.speculator import Speculation, Verification
from minillm.speculate.suffix import SuffixDrafter

if TYPE_CHECKING:
    from minillm.backends.numeric import NumericBackend
    from minillm.core.backend import Backend
    from minillm.models.load import LoadedModel

Method = Literal["ngram", "suffix", "draft", "tree", "medusa", "eagle", "mtp"]
METHODS: tuple[Method, ...] = get_args(Method)
VERIFICATIONS: tuple[Verification, ...] = get_args(Verification)
BUNDLED_DRAFTS = {"tiny": "tiny-draft"}  # by bundled target

_WITH_MODEL = ("draft", "tree")
_HEADS = ("medusa", "eagle", "mtp")
_DRAFT_TOKENS: dict[Method, int] = {
    **{"ngram": 4, "suffix": 8, "draft": 4, "tree": 8},
    **{"medusa": 8, "eagle": 4, "mtp": 3},
}


@dataclass(frozen=True, slots=True)
class Speculate:
    """What a user says of it. Invalid values raise ``ValueError``."""

    method: Method
    draft_tokens: int | None = None  # most tokens drafted for a request in a step; None is the method's default
    draft_model: str | None = None  # a name or a path; None is the one bundled with the target
    verification: Verification = "draw"  # see `minillm.speculate.accept`
    adaptive: bool = False  # fewer tokens, or none, where the measured acceptance does not pay for them

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"speculation by {self.method!r} is unknown: choose from {', '.join(METHODS)}")
        if self.draft_model is not None and self.method not in _WITH_MODEL:
            raise ValueError(
                f"draft_model is {self.draft_model!r}, but {self.method} drafts without a model: leave it out, or "
                f"use {' or '.join(_WITH_MODEL)}"
            )
        if self.verification == "rejection" and self.method == "tree":
            raise ValueError(
                "verification is 'rejection', but a tree has no one distribution to reject against: use 'draw'"
            )
        self.with_drafter(NgramDrafter())  # the other fields are checked there

    def with_drafter(self, drafter: Drafter) -> Speculation:
        """What the engine is given."""
        return Speculation(
            drafter,
            _DRAFT_TOKENS[self.method] if self.draft_tokens is None else self.draft_tokens,
            self.verification,
            self.adaptive,
        )


def speculation_for(
    options: Speculate,
    target: LoadedModel,
    backend: NumericBackend,
    path_of: Callable[[str], Path],
    new_backend: Callable[[LoadedModel], Backend],
) -> Speculation:
    """Speculation for one engine with ``target``, which runs on ``backend``.

    ``path_of`` says where a model lies that is named, ``new_backend`` makes one that the draft model has for itself.

    Raises:
        ValueError: there are no heads or no draft model for the target, or its vocabulary is another one.
    """
    if options.method == "ngram":
        return options.with_drafter(NgramDrafter())
    if options.method == "suffix":
        return options.with_drafter(SuffixDrafter())
    if options.method in _HEADS:
        return _with_heads(options, target, backend)
    from minillm.models.load import load_model  # here, so that the command line's options need no NumPy

    name = options.draft_model or _bundled_draft(options.method, target)
    draft = load_model(path_of(name))
    check_vocabulary(target, draft)
    its_own = new_backend(draft)
    return options.with_drafter(DraftTree(its_own) if options.method == "tree" else DraftModel(its_own))


def _with_heads(options: Speculate, target: LoadedModel, backend: NumericBackend) -> Speculation:
    from minillm.backends.heads import NumericHeads
    from minillm.models.heads.files import CONFIG, open_heads

    folder = hub.BUNDLED / f"{target.name}-{options.method}"
    if not target.bundled or not (folder / CONFIG).is_file():
        trained = ", ".join(sorted({p.parent.name.rpartition("-")[0] for p in hub.BUNDLED.glob(f"*/{CONFIG}")}))
        raise ValueError(
            f"there are no {options.method} heads for {target.name}: heads read the hidden states of the one model "
            f"that they were trained for, and those bundled are for {trained}; use draft with a draft model, ngram "
            "or suffix"
        )
    heads = NumericHeads(backend, open_heads(folder, target.spec))
    if options.method == "medusa":
        return options.with_drafter(MedusaDrafter(heads))
    if options.method == "eagle":
        return options.with_drafter(EagleDrafter(heads))
    return options.with_drafter(MtpDrafter(heads, options.draft_tokens))


def _bundled_draft(method: Method, target: LoadedModel) -> str:
    if target.bundled and target.name in BUNDLED_DRAFTS:
        return BUNDLED_DRAFTS[target.name]
    raise ValueError(
        f"speculation by {method!r} needs a draft model, and none is bundled for {target.name} (only for "
        f"{', '.join(BUNDLED_DRAFTS)}): name a smaller model with the same vocabulary as draft_model, or use "
        "ngram or suffix"
    )


def check_vocabulary(target: LoadedModel, draft: LoadedModel) -> None:
    """``ValueError`` unless every token id means the same to both models."""
    sizes = target.spec.vocab_size, draft.spec.vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"draft model {draft.name} has {sizes[1]:,} token ids, {target.name} has {sizes[0]:,}: "
            "a draft model needs the target's vocabulary"
        )
    ours, theirs = target.tokenizer(), draft.tokenizer()
    for token_id in range(sizes[0]):
        one, other = name_bytes(ours, token_id), name_bytes(theirs, token_id)
        if one != other:
            raise ValueError(
                f"token {token_id} is {one!r} to {target.name} and {other!r} to draft model {draft.name}: "
                "a draft model needs the target's vocabulary"
            )
