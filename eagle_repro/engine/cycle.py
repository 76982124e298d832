"""One cycle of speculative decoding as tensor operations: draft -> verify -> accept -> commit.

No Python here depends on data, and all state lives in tensors that are changed in place, so a stack may run the
phases one by one or capture them once and replay them.

Shapes: B rows, n tree nodes, m = drafted levels + 1 (most tokens a cycle commits), H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from eagle_repro.engine.accept import Accepted, Sampling, accept, choose, finite_choices
from eagle_repro.engine.attention import SlotCache, prefix_mask, visibility
from eagle_repro.engine.compiled import compilable, compiled
from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.target import Target
from eagle_repro.engine.tree import Candidates, DraftTree, build_tree, ranked, root_tree

T = TypeVar("T")
PART = 256


@dataclass
class State:
    """What a cycle starts from and leaves behind.

    length (B,): committed tokens, which fill slots 0..length-1 of the target's cache.
    root (B,): the target's next token, chosen but in no cache yet; node 0 of the next tree.
    features (B, f, 3H), followers (B, f), pending (B,): true features of the last `pending` committed positions, which
    the head has not seen yet, and the token that follows each; rows past `pending` are padding. few: m of the largest
    tree, what its cycle leaves pending at most, None for f; more than that wait after plain steps alone, up to f >= m.
    active (B,) bool: rows still being decoded; the others keep length, root and pending, and nobody reads the rest.
    noise (B, f, V) float32: for the token after a node of depth 0, 1, ...; None when greedy.
    """

    length: Tensor
    root: Tensor
    features: Tensor
    followers: Tensor
    pending: Tensor
    active: Tensor
    noise: Tensor | None
    target_cache: SlotCache
    head_cache: SlotCache | None
    few: int | None = None

    @classmethod
    def blank(
        cls,
        target: Target,
        head: Eagle3Head | None,
        batch: int,
        slots: int,
        rows: int,
        *,
        few: int | None = None,
        sampled: bool = False,
    ) -> State:
        """Buffers for `batch` texts: caches of `slots` slots, `rows` features a text, noise when sampled."""
        device = target.device
        zeros = torch.zeros(batch, dtype=torch.long, device=device)
        return cls(
            length=zeros,
            root=zeros.clone(),
            features=torch.zeros(batch, rows, 3 * target.hidden_size, dtype=target.dtype, device=device),
            followers=torch.zeros(batch, rows, dtype=torch.long, device=device),
            pending=torch.ones_like(zeros),
            active=torch.ones(batch, dtype=torch.bool, device=device),
            noise=torch.zeros(batch, rows, target.vocabulary, device=device) if sampled else None,
            target_cache=target.cache(batch, slots),
            head_cache=head.cache(batch, slots) if head is not None else None,
            few=few,
        )

    @property
    def small(self) -> tuple[Tensor, ...]:
        """What a cycle changes beside the caches."""
        return self.length, self.root, self.features, self.followers, self.pending


class Launch(Protocol):
    """How a stack runs the phases of a cycle: "draft", "verify", "accept" and "commit", each a work over tensors."""

    def __call__(self, phase: str, work: Callable[[], T]) -> T: ...


def at_once(phase: str, work: Callable[[], T]) -> T:
    """The plainest launch: operation by operation, now."""
    return work()


def cycle(
    target: Target,
    head: Eagle3Head | None,
    state: State,
    shape: TreeShape | None,
    span: int,
    sampling: Sampling,
    launch: Launch = at_once,
    *,
    catch: bool = False,
) -> tuple[DraftTree, Accepted]:
    """Draft a tree, verify it in one target pass, accept the path the target agrees with, commit it.

    shape None is a plain step: the tree is its root. With a head, its features are kept for a later tree. catch: the
    head sees all that waits, before a plain step to make room, before a tree because more than state.few wait. span:
    cache slots that passes read, at least length + slots_of(shape).
    """
    waiting = replace(state, few=None) if catch else state  # as the head reads it

    def drafted() -> DraftTree:
        if shape is not None and head is not None:
            return draft(head, waiting, shape, span)
        if catch and head is not None:
            catch_up(head, waiting, span)
            state.pending.mul_(~state.active)
        return root_tree(state.root)

    def verified() -> tuple[Tensor, Tensor, Tensor | None]:
        read = shape.pass_span(span) if shape is not None else span
        logits, features = verify(target, state, tree, read, features=head is not None)
        choices = choose(logits, sampling, node_noise(state, tree))
        return choices, finite_choices(logits, choices), features

    tree = launch("draft", drafted)
    choices, finite, features = launch("verify", verified)
    accepted = launch("accept", lambda: accept(tree, choices, finite, levels=shape.levels if shape else 0))
    launch("commit", lambda: commit(state, features, accepted, caught_up=shape is not None))
    return tree, accepted


def draft(head: Eagle3Head, state: State, shape: TreeShape, span: int) -> DraftTree:
    """The tree under state.root that the head finds most likely, from depth + 1 head passes."""
    return build_tree(state.root, draft_candidates(head, state, shape.depth, shape.top_k, span), shape)


def draft_candidates(head: Eagle3Head, state: State, depth: int, k: int, span: int) -> Candidates:
    """Everything that depth + 1 head passes of width k draft under state.root: k + depth * k * k candidates.

    What a level drafts does not depend on how many nodes are kept, nor on the levels below it.
    """
    assert state.head_cache is not None
    device, cache = state.length.device, state.head_cache
    hidden = catch_up(head, state, span)  # (B, 1, H): the head's output for the root
    tokens, logprobs = best_children(head, hidden, k)
    inputs, best, hidden = tokens[:, 0], logprobs[:, 0], hidden.repeat(1, k, 1)  # of the k frontier nodes
    if not depth:
        return Candidates.of_levels([inputs], [best], [])
    drafted, scores, chosen = [inputs], [best], []
    seen = prefix_mask(state.length.unsqueeze(1), span, hidden.dtype).repeat(1, k, 1)  # (B, k, span), each node's own
    drawn = torch.arange(depth * k, device=device)
    slots = cache.at((state.length.unsqueeze(1) + drawn).clamp(max=span - 1), span).slots  # of all levels
    positions = state.length.unsqueeze(1) + drawn // k
    for level in range(depth):
        own = slice(level * k, level * k + k)
        cache.writing(slots[:, own])
        seen.scatter_(2, cache.slots.unsqueeze(-1), 0.0)
        hidden = head(hidden, inputs, positions[:, own], seen.unsqueeze(1), cache)
        tokens, logprobs = best_children(head, hidden, k)  # (B, k, k)
        drafted.append(tokens.flatten(1))
        scores.append((best.unsqueeze(-1) + logprobs).flatten(1))
        if level + 1 < depth:
            newest, best, inputs, hidden, seen = next_frontier(drafted[-1], scores[-1], hidden, seen)
            chosen.append(newest)
    # Flat candidate numbers of what was expanded, best first: all of level 0, then k of each expansion.
    expanded = [torch.arange(k, device=device).expand(len(state.length), k)]
    if chosen:
        starts = torch.arange(k, k + len(chosen) * k * k, k * k, device=device).repeat_interleave(k)
        expanded.append(torch.cat(chosen, dim=1) + starts)
    return Candidates.of_levels(drafted, scores, expanded)


@compilable(tokens=(0,), scores=(0,), hidden=(0,), seen=(0, 2))
def next_frontier(
    tokens: Tensor, scores: Tensor, hidden: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The best k of a level's k * k candidates: their numbers there, scores and tokens (B, k); hidden states (B, k, H)
    and masks (B, k, span) of their parents, the rows that drafted them."""
    k = hidden.shape[1]
    best, newest = (column[:, :k] for column in ranked(scores))
    parent = newest // k
    return newest, best, tokens.gather(1, newest), pick_rows(hidden, parent), pick_rows(seen, parent)


def pick_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (B, m) of x (B, n, W): (B, m, W)."""
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def catch_up(head: Eagle3Head, state: State, span: int) -> Tensor:
    """Give the head the features it has not seen; its output (B, 1, H) at the last committed position.

    The pass reads state.few rows, all pending ones among them. Padding rows write behind the committed slots, where
    nothing reads before drafting overwrites it.
    """
    assert state.head_cache is not None
    features, followers = state.features[:, : state.few], state.followers[:, : state.few]
    start = state.length - state.pending
    places = torch.arange(features.shape[1], device=start.device)
    cache = state.head_cache.at(start.unsqueeze(1) + places, span)
    mask = prefix_mask(cache.slots + 1, span, features.dtype).unsqueeze(1)
    hidden = head(head.fuse(features), followers, cache.slots, mask, cache)
    return pick_rows(hidden, (state.pending - 1).unsqueeze(1))


def best_children(head: Eagle3Head, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest next tokens (target ids) and their log-probabilities (B, n, count), best first."""
    if compiled() and head.fused is not None:
        return head.fused.likeliest(head.logits(hidden), count)
    values, indices = likeliest(head.log_probabilities(hidden), count)
    return head.to_target(indices), values


def likeliest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of values (B, n, D) and their indices, best first.

    A large vocabulary is searched by parts and then among the parts' best: one search over it all is a single block's
    work on a GPU.
    """
    if values.shape[-1] % PART or values.shape[-1] < 4 * PART or count > PART:
        return tuple(values.topk(count, dim=-1))  # type: ignore[return-value]
    parts = values.unflatten(-1, (-1, PART)).topk(count, dim=-1, sorted=False)
    best = parts.values.flatten(-2).topk(count, dim=-1)
    within = parts.indices.flatten(-2).gather(-1, best.indices)
    return best.values, within.add(best.indices // count, alpha=PART)


def verify(target: Target, state: State, tree: DraftTree, span: int, *, features: bool) -> tuple[Tensor, Tensor | None]:
    """Logits (B, n, V) and features (B, n, 3H) of every node, from one pass of the target over the tree."""
    if tree.tokens.shape[1] == 1:
        mask = prefix_mask(state.length.unsqueeze(1) + 1, span, target.dtype).unsqueeze(1)
    else:
        mask = visibility(state.length, tree.ancestors, span, target.dtype)
    slots = state.length.unsqueeze(1) + torch.arange(tree.tokens.shape[1], device=tree.tokens.device)
    positions = state.length.unsqueeze(1) + tree.depths
    cache = state.target_cache.at(slots, span)
    hidden, tapped = target.forward(tree.tokens, positions, mask, cache, features=features)
    return target.logits(hidden), tapped


def node_noise(state: State, tree: DraftTree) -> Tensor | None:
    """The noise (B, n, V) of each node's choice: nodes of one depth share it, for it belongs to the position."""
    if state.noise is None:
        return None
    return pick_rows(state.noise, tree.depths)


def commit(state: State, features: Tensor | None, accepted: Accepted, *, caught_up: bool = True) -> None:
    """Keep the accepted path: its cache slots in line, its features for the head, the next root.

    caught_up: the head has seen what was pending, as drafting makes it; else the features of this one token wait behind
    the others, and there must be room for them.
    """
    advance = (accepted.count + 1) * state.active  # the root and the accepted tokens
    if features is not None:
        # Rows that have ended write too: nobody reads theirs, and asking which they are takes longer.
        if caught_up:
            levels = torch.arange(accepted.path.shape[1], device=state.length.device)
            length = state.length.unsqueeze(1)
            state.target_cache.move(length + accepted.path, length + levels)
            state.pending.mul_(~state.active)
            state.features[:, : len(levels)] = pick_rows(features, accepted.path)
            state.followers[:, : len(levels)] = accepted.emitted
        else:
            place = state.pending.clamp(max=state.features.shape[1] - 1).unsqueeze(1)
            state.features.scatter_(1, place.unsqueeze(-1).expand_as(features), features)
            state.followers.scatter_(1, place, accepted.emitted)
        state.pending.add_(advance)
    following = accepted.emitted.gather(1, accepted.count.unsqueeze(1)).squeeze(1)
    state.root.copy_(torch.where(state.active, following, state.root))
    state.length.add_(advance)


def causal(tokens: int, device: torch.device) -> Tensor:
    """(1, n, n) bool: each of n tokens in a row sees itself and those before it."""
    return torch.ones(1, tokens, tokens, dtype=torch.bool, device=device).tril()
