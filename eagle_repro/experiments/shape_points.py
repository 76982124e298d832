"""Which tree shapes 03_tree_shape looks at: the points of its sweeps and cost curves, and the grid it picks from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle_repro.engine.shape import TreeShape, node_capacity
from eagle_repro.experiments.protocol import Protocol
from eagle_repro.experiments.rows import Row, shape_of
from eagle_repro.measure.curves import Prediction, Shape


@dataclass(frozen=True)
class Points:
    """Points of one profile.

    depths, nodes, widths: of the sweeps; each sweep varies one and keeps the default tree's other two. widths are also
    those that are recorded, and that a shape is picked from. cost_depths, cost_nodes, cost_widths: where cycles are
    timed, `cycles` of each shape in `rounds` turns. reference_passes: passes of each length in the reference's rule.
    every: whether all points are measured end to end, else the picks and the article's shapes, four at most.
    """

    depths: tuple[int, ...]
    nodes: tuple[int, ...]
    widths: tuple[int, ...]
    cost_depths: tuple[int, ...]
    cost_nodes: tuple[int, ...]
    cost_widths: tuple[int, ...]
    cycles: int
    rounds: int
    reference_passes: int
    every: bool


# The cost widths beyond the recorded ones serve the panel alone: a batch drafts wider than a text.
POINTS = {
    "smoke": Points(
        depths=(2, 4, 7), nodes=(8, 32, 64), widths=(1, 4, 10),
        cost_depths=(0, 3, 7), cost_nodes=(2, 8, 24, 64), cost_widths=(1, 4, 10),
        cycles=2, rounds=1, reference_passes=1, every=False,
    ),
    "quick": Points(
        depths=(2, 3, 4, 5, 6, 7, 8, 9, 10), nodes=(8, 16, 32, 48, 96, 128), widths=(1, 2, 4, 10),
        cost_depths=(0, 4, 10), cost_nodes=(2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), cost_widths=(1, 4, 10, 32),
        cycles=8, rounds=2, reference_passes=3, every=False,
    ),
    "full": Points(
        depths=(2, 3, 4, 5, 6, 7, 8, 9, 10), nodes=(8, 16, 32, 64, 96, 128, 192, 256, 384, 512),
        widths=(1, 2, 4, 6, 10, 16),
        cost_depths=(0, 2, 5, 10), cost_nodes=(2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512),
        cost_widths=(1, 2, 4, 6, 10, 16, 64, 160),
        cycles=24, rounds=3, reference_passes=20, every=True,
    ),
    "t4": Points(
        depths=(2, 3, 5, 7, 10), nodes=(16, 32, 64, 128, 256, 512), widths=(1, 4, 10, 16),
        cost_depths=(0, 4, 10), cost_nodes=(2, 8, 16, 32, 64, 128, 192, 256, 384, 512), cost_widths=(1, 4, 10, 16, 64),
        cycles=12, rounds=3, reference_passes=20, every=True,
    ),
}  # fmt: skip
#: Nodes that a shape may be picked with: fine where trees are small and a node more matters.
GRID_NODES = (
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 60, 64, 80, 96, 112, 128, 160, 192, 224, 256,
    320, 384, 448, 512,
)  # fmt: skip
ARTICLE = (Shape(60, 7, 10), Shape(60, 2, 10))
LONGEST_COST_TEXT = 96
RUNNERS_UP = 2  # measured beside the pick, where all points are measured
MOST_WHERE_FEW = 4


def widths_of(protocol: Protocol) -> tuple[int, ...]:
    """Widths that are recorded: those of the profile and the default tree's."""
    return tuple(sorted({*POINTS[protocol.profile].widths, protocol.top_k}))


def depth_of(protocol: Protocol) -> int:
    """The depth that recordings reach."""
    return max(*POINTS[protocol.profile].depths, protocol.depth, *(shape.depth for shape in ARTICLE))


def sweep_points(protocol: Protocol) -> Iterator[Row]:
    """The points of the three sweeps around the default tree, each cut to its capacity and marked if it was."""
    points, default = POINTS[protocol.profile], Shape(protocol.total_tokens, protocol.depth, protocol.top_k)
    values = {
        "depth": {*points.depths, default.depth},
        "nodes": {*points.nodes, default.total_tokens},
        "top_k": widths_of(protocol),
    }
    for name, asked in values.items():
        field = "total_tokens" if name == "nodes" else name
        for value in sorted(asked):
            yield point(name, default._replace(**{field: value}), asked=value)


def pick_points(protocol: Protocol, nodes: int, ranking: Sequence[Prediction]) -> Iterator[Row]:
    """The default tree, the article's trees, and who picks what. nodes: of the reference's rule, which sets nothing
    else; ranking: of the cost model, best first."""
    default = Shape(protocol.total_tokens, protocol.depth, protocol.top_k)
    yield point("pick", default, rule="default")
    yield point("pick", ranking[0].shape, rule="cost model")
    yield point("pick", default._replace(total_tokens=nodes), rule="reference")
    yield from (point("article", shape, rule="article") for shape in ARTICLE)
    chain = TreeShape.chain(default.depth)
    yield point("article", Shape(chain.total_tokens, chain.depth, chain.top_k), rule="article")
    yield from (point("pick", each.shape, rule="runner-up") for each in ranking[1 : 1 + RUNNERS_UP])


def point(sweep: str, shape: Shape, *, asked: int | None = None, rule: str | None = None) -> Row:
    """A point as the record has it, cut to its capacity."""
    cut, clipped = TreeShape.clipped(*shape)
    sizes = {"total_tokens": cut.total_tokens, "depth": cut.depth, "top_k": cut.top_k}
    return {"what": "point", "sweep": sweep, "rule": rule, "asked": asked, **sizes, "clipped": clipped}


def measured_points(points: Sequence[Row], *, every: bool) -> dict[TreeShape, Row]:
    """Which shapes are measured end to end, each once, and the first of the points that it stands for.

    The picks come first; without `every` they and the article's trees are all, as far as MOST_WHERE_FEW goes.
    """
    found: dict[TreeShape, Row] = {}
    for each in points:
        found.setdefault(shape_of(each), each)
    picked = dict.fromkeys(shape_of(each) for each in points if each["rule"] is not None)
    chosen = [*picked, *(shape for shape in found if shape not in picked)] if every else list(picked)[:MOST_WHERE_FEW]
    return {shape: found[shape] for shape in chosen}


def cost_shapes(protocol: Protocol, draft_vocabulary: int) -> list[TreeShape]:
    """Shapes whose cycles are timed: every depth with every width, the node counts dealt out among them.

    What drafting costs does not depend on the nodes, nor verifying on depth and width, so that one cycle is a point of
    all curves. Shapes of small capacity get the small counts. Nothing is picked beyond the recorded widths, and wide
    drafts take so long that they blur what is verified after them: there the default tree's nodes will do.
    """
    points = POINTS[protocol.profile]
    depths = {*points.cost_depths, depth_of(protocol)}
    widths = {*(k for k in points.cost_widths if k <= draft_vocabulary), *widths_of(protocol)}
    most = max(widths_of(protocol))
    pairs = sorted(((d, k) for d in depths for k in widths), key=lambda pair: (node_capacity(*pair), pair))
    near, wide = [pair for pair in pairs if pair[1] <= most], [pair for pair in pairs if pair[1] > most]
    nodes = sorted({*points.cost_nodes, protocol.total_tokens})
    dealt = [nodes[place * len(nodes) // len(near)] for place in range(len(near) - 1)] + nodes[-1:]
    dealt += [protocol.total_tokens] * len(wide)
    return [TreeShape.clipped(count, *pair)[0] for count, pair in zip(dealt, near + wide, strict=True)]


def cost_tokens(protocol: Protocol) -> int:
    """Tokens of the texts in which replayed cycles are timed: whole answers, or as much as a slow card has time for."""
    return min(protocol.new_tokens, LONGEST_COST_TEXT)


def grid(protocol: Protocol) -> list[Shape]:
    """Shapes to pick from: no more nodes than were timed, depths from 0 on, the recorded widths."""
    most = max(*POINTS[protocol.profile].cost_nodes, protocol.total_tokens)
    return [
        Shape(nodes, depth, top_k)
        for top_k in widths_of(protocol)
        for depth in range(depth_of(protocol) + 1)
        for nodes in GRID_NODES
        if nodes <= min(node_capacity(depth, top_k), most)
    ]
