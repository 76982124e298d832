"""What a decoding run is asked for, what it gives back, and the rule that ends a text."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.ids import is_whole, token_ids
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import DraftTree

METHODS = ("plain", "eagle", "chain", "adaptive", "hf")


class NonFiniteLogits(ArithmeticError):
    """The target produced logits that are not finite: the text after them would mean nothing."""


@dataclass(frozen=True)
class Cycle:
    """One cycle. accepted counts drafted tokens and is never cut; emitted is cut at the end of the text or the budget.

    context: committed tokens before the cycle. Phase times are seconds, None unless the run was instrumented.
    """

    nodes: int
    accepted: int
    emitted: int
    context: int
    draft_s: float | None = None
    verify_s: float | None = None
    accept_s: float | None = None
    commit_s: float | None = None
    tree: DraftTree | None = None


@dataclass(frozen=True)
class Generation:
    """A finished text. ids: new tokens only. Times are seconds; prefill ends when the first token is known.

    capture_s: what the stack made ready in between, in neither of the other two. Of a batch prefill_s and capture_s are
    those of all rows together, told in each, and decode_s ends with the row.
    """

    ids: list[int]
    stop_reason: str
    cycles: list[Cycle]
    prefill_s: float
    decode_s: float
    capture_s: float = 0.0

    @property
    def tau(self) -> float | None:
        """Mean over cycles of accepted + 1, the prefill's token not counted; None without a cycle."""
        return sum(c.accepted + 1 for c in self.cycles) / len(self.cycles) if self.cycles else None


@dataclass(frozen=True)
class Request:
    """A checked request: what to write, how, and when to stop. max_length counts committed tokens.

    candidates: the shapes that method="adaptive" picks from.
    """

    prompt: list[int]
    method: str = "eagle"
    shape: TreeShape | None = None
    max_new_tokens: int = 192
    max_length: int = 2048
    sampling: Sampling = Sampling()
    stop: str = "eos"
    record_trees: bool = False
    instrument: bool = False
    candidates: tuple[TreeShape, ...] = ()

    @property
    def budget(self) -> int:
        return min(self.max_new_tokens, self.max_length - len(self.prompt))

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """The trees that may be drafted."""
        if self.method == "adaptive":
            return self.candidates
        return (self.shape,) if self.method in ("eagle", "chain") and self.shape is not None else ()

    def check(self, target: Target, head: Eagle3Head | None) -> None:
        """Raise ValueError in one line for whatever cannot be carried out, before any forward pass."""
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r} is not known: use one of {', '.join(METHODS)}")
        if not self.prompt:
            raise ValueError("the prompt is empty: at least one token is needed")
        token_ids(self.prompt, target.vocabulary)
        if not is_whole(self.max_new_tokens) or self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be a whole number of at least 1, got {self.max_new_tokens!r}")
        if self.stop not in ("eos", "never"):
            raise ValueError(f'stop={self.stop!r} is not known: use "eos" or "never"')
        room = self.max_length - len(self.prompt)
        if room < 1 or (self.stop == "never" and room < self.max_new_tokens):
            raise ValueError(
                f"a prompt of {len(self.prompt)} tokens and {self.max_new_tokens} new ones do not fit "
                f"max_length={self.max_length}: shorten the prompt, ask for fewer tokens or load the pair with more"
            )
        shapes = self.shapes
        if self.method in ("eagle", "chain", "adaptive") and (head is None or not shapes):
            raise ValueError(f'method={self.method!r} needs a head and a shape; method="plain" does without')
        for shape in shapes:
            assert head is not None
            shape.require_vocabulary(head.config.draft_vocabulary)
            if shape.slots > max(self.max_length, 4096):
                raise ValueError(
                    f"a cycle of {shape} needs {shape.slots} cache slots, more than a whole text of "
                    f"max_length={self.max_length}: use a smaller depth or fewer nodes"
                )
        if self.method == "hf" and not self.sampling.greedy:
            raise ValueError('method="hf" is the greedy stock generate: use temperature 0, or method="plain"')


class Text:
    """The ids written so far and the rule that ends them."""

    def __init__(self, request: Request, eos_ids: frozenset[int]) -> None:
        self.ids: list[int] = []
        self.stop_reason: str | None = None
        self._eos = eos_ids if request.stop == "eos" else frozenset()
        self._budget = request.budget
        self._full = "budget" if request.budget == request.max_new_tokens else "length"

    def extend(self, ids: list[int]) -> int:
        """Append ids up to and including the first end of text, within the budget; returns how many."""
        for count, token in enumerate(ids, start=1):
            self.ids.append(token)
            if token in self._eos:
                self.stop_reason = "eos"
            elif len(self.ids) == self._budget:
                self.stop_reason = self._full
            if self.stop_reason:
                return count
        return len(ids)
