"""A target split over devices writes what it writes on one: a cache beside each layer, everything else on the first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

from eagle_repro.api import Pair, generate, load_pair, weights_size
from eagle_repro.engine import devices
from eagle_repro.engine.accept import Sampling
from eagle_repro.engine.devices import target_devices
from eagle_repro.engine.fused import fusible
from eagle_repro.engine.shape import TreeShape
from eagle_repro.engine.split import SplitCache, device_map, layer_places
from eagle_repro.engine.target import Target
from eagle_repro.experiments import guards
from eagle_repro.experiments.protocol import build_protocol
from eagle_repro.experiments.sampling import sample_texts
from eagle_repro.experiments.watched import watch
from eagle_repro.measure.lossless import check
from eagle_repro.sources.pairs import PAIRS, SHAPES
from tests.models import pair_of, tiny_target

GB = 1_000_000_000
SHAPE, PROMPT = TreeShape(12, 3, 4), [5, 9, 2, 77, 31]
#: Two names of the one CPU: layers that lie on them are held apart, as on two cards.
HERE, THERE = torch.device("cpu"), torch.device("cpu", 0)
METHODS = ("plain", "eagle", "chain", "adaptive")
Cards = Callable[..., None]


@pytest.fixture
def split(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The tiny random pair, its layers on two devices by name."""
    target = Target(pair.target.model)
    target.places = [HERE] * 3 + [THERE] * 5
    return pair_of(target, pair.head)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Pretend to have cards with so many bytes free."""

    def pretend(*free: float) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(free))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (int(free[card.index or 0]), 2**34))

    return pretend


# --- which layer where -----------------------------------------------------------------------------------------------


def test_layers_go_in_order_and_every_device_carries_about_as_much() -> None:
    assert layer_places(8, 10, 0, 2) == [0] * 4 + [1] * 4
    assert layer_places(8, 10, 40, 2) == [0] * 2 + [1] * 6
    assert layer_places(4, 10, 1000, 2) == [1] * 4
    assert layer_places(9, 10, 0, 3) == [0] * 3 + [1] * 3 + [2] * 3


def test_the_8b_target_fits_two_t4s_and_leaves_room_for_the_head() -> None:
    shape = SHAPES["qwen3-8b"]
    tables = 2 * shape.vocabulary * shape.hidden
    layer = (shape.target_parameters - tables - shape.hidden) // shape.layers
    places = layer_places(shape.layers, 2 * layer, 2 * tables, 2)
    first = 2 * (tables + places.count(0) * layer + shape.head_parameters)
    assert max(first, 2 * places.count(1) * layer) < 10 * GB


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_map_names_every_parameter_once(family: str, tied: bool) -> None:
    model = tiny_target(family, tie_word_embeddings=tied)
    found = device_map(model, [HERE, THERE])
    names = [name for name, _ in model.named_parameters()]
    assert all(sum(name.startswith(f"{module}.") for module in found) == 1 for name in names)
    layers = [place for module, place in found.items() if ".layers." in module]
    assert layers == sorted(layers, key=[HERE, THERE].index) and len(set(map(id, layers))) == 2
    assert all(place is HERE for module, place in found.items() if ".layers." not in module)


def test_one_card_is_taken_where_it_suffices_and_the_fewest_where_it_does_not(cards: Cards) -> None:
    cards(15 * GB, 15 * GB, 15 * GB)
    assert [len(target_devices("auto", int(needed * GB))) for needed in (0.3, 13.9, 14.1, 27, 41)] == [1, 1, 2, 2, 3]
    assert target_devices("auto", 99 * GB) == target_devices("auto") == [torch.device("cuda:0")]
    assert target_devices("cuda:1", 20 * GB) == [torch.device("cuda:1")], "a named card is not left"
    assert target_devices("cuda:0, cuda:2") == [torch.device("cuda:0"), torch.device("cuda:2")]
    cards()
    assert target_devices("auto", 99 * GB) == [torch.device("cpu")]


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda:0,cuda:0", "are different cards"),
        ("cuda,cuda:1", "are different cards"),
        ("cpu,cpu", "are different cards"),
        ("cpu,cuda:0", "are different cards"),
        ("cuda:0,cuda:7", "'cuda:7' is not here"),
        ("cuda:0,tpu", "'tpu' is not known"),
    ],
)
def test_devices_that_no_target_can_be_split_over_are_refused(cards: Cards, device: str, reason: str) -> None:
    cards(GB, GB)
    with pytest.raises(ValueError, match=reason):
        target_devices(device)


def test_graphs_of_a_split_target_are_refused_before_anything_is_resolved(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(15 * GB, 15 * GB)
    monkeypatch.setattr("eagle_repro.api.resolve", lambda *_, **__: pytest.fail("weights were looked for"))
    for device in ("auto", "cuda:0,cuda:1"):
        with pytest.raises(ValueError, match='stack="graph" cannot hold a target that is split over devices'):
            load_pair("qwen3-8b", device=device, stack="graph")


def test_the_guard_of_memory_tells_of_the_split(cards: Cards) -> None:
    def guard(**settings: Any) -> guards.Guard:
        return guards.memory(build_protocol({}, {"profile": "t4"}, {"pair": "qwen3-8b", **settings}))

    cards(15 * GB, 15 * GB)
    found = guard()
    assert found.verdict == "ok" and "on cuda:0, cuda:1" in found.detail and "split over the cards" in found.detail
    assert guard(stack="graph").verdict == "refused" and 'take stack="eager"' in guard(stack="graph").detail
    assert guard(device="cuda:0").verdict == "refused"
    cards(15 * GB)
    assert guard().verdict == "refused"


def test_the_size_of_weights_goes_by_the_precision() -> None:
    refs = (PAIRS["qwen3-8b"].target, PAIRS["qwen3-8b"].head)
    half = weights_size(refs, torch.float16)
    assert half is not None and 17 * GB < half < 18 * GB and weights_size(refs, torch.float32) == 2 * half
    assert devices.BESIDE_WEIGHTS >= GB // 2


# --- the cache -------------------------------------------------------------------------------------------------------


def test_a_split_cache_holds_each_run_of_layers_apart_and_reads_like_one(split: Pair, pair: Pair) -> None:
    ours, whole = split.target.cache(2, 16), pair.target.cache(2, 16)
    assert isinstance(ours, SplitCache) and [part.kv.shape[0] for part in ours.parts] == [3, 5]
    assert not isinstance(whole, SplitCache) and ours.capacity == whole.capacity and ours.nbytes == whole.nbytes > 0
    slots = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for layer in range(split.target.layers):
        for cache in (ours, whole):
            key, value = torch.full((2, 2, 3, 32), float(layer)), torch.full((2, 2, 3, 32), -float(layer))
            cache.at(slots, 8).update(key, value, layer)
    for cache in (ours, whole):
        cache.move(torch.tensor([[1], [4]]), torch.tensor([[6], [7]]))
    assert torch.equal(torch.cat([part.kv for part in ours.parts]), whole.kv)  # type: ignore[attr-defined]
    copy = split.target.cache(3, 16)
    copy.fill(ours.row(1))
    assert torch.equal(torch.cat([part.kv for part in copy.parts]), whole.kv[:, :, 1:].expand(-1, -1, 3, -1, -1, -1))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_a_split_target_writes_the_same_ids(split: Pair, pair: Pair, method: str) -> None:
    options: dict[str, Any] = {"method": method, "max_new_tokens": 24, "stop": "never"}
    options |= {} if method == "adaptive" else {"shape": SHAPE}
    for prompt in (PROMPT, [PROMPT, PROMPT[:2], [8, 8]]):
        ours, one = generate(split, prompt, **options), generate(pair, prompt, **options)
        assert [each.ids for each in _listed(ours)] == [each.ids for each in _listed(one)]
    if method != "adaptive":  # which is as the clock says
        assert [each.tau for each in _listed(ours)] == [each.tau for each in _listed(one)]


def test_cycles_of_a_split_target_are_watched_like_others(split: Pair, pair: Pair) -> None:
    assert split.target.split and not pair.target.split
    rows, ready = zip(*(watch(each, SHAPE, [[PROMPT]], 8, 3) for each in (split, pair)), strict=True)
    assert ready[0]["buffer_bytes"] == ready[1]["buffer_bytes"] and rows[0]["verify_s"] > 0


def test_sampled_texts_of_a_split_target_are_the_same(split: Pair, pair: Pair) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    for shape in (None, SHAPE):
        ours, one = (sample_texts(each, PROMPT, [1, 2, 3], 8, sampling, shape=shape) for each in (split, pair))
        assert ours.tolist() == one.tolist()


@pytest.mark.parametrize("method", ["eagle", "hf"])
def test_the_hooks_that_move_what_a_layer_gets_leave_a_pass_as_it_is(pair: Pair, method: str) -> None:
    model = tiny_target()
    accelerate.dispatch_model(model, dict.fromkeys(device_map(model, [HERE]), "cpu"), force_hooks=True)
    assert all(hasattr(layer, "_hf_hook") for layer in model.get_decoder().layers)
    target = Target(model)
    target.prove()
    target.places = [HERE] * 3 + [THERE] * 5
    options: dict[str, Any] = {"method": method, "shape": SHAPE, "max_new_tokens": 16, "stop": "never"}
    done = generate(pair_of(target, pair.head), PROMPT, **options)
    assert done.ids == generate(pair, PROMPT, **options).ids and check(pair, PROMPT, done.ids).ok


def _listed(done: Any) -> list[Any]:
    return done if isinstance(done, list) else [done]


# --- on two cards ----------------------------------------------------------------------------------------------------


two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.gpu
@two_cards
@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.real)])
def test_on_two_cards_the_ids_are_those_of_one(name: str) -> None:
    one, two = (
        load_pair(name, device=device, dtype="float32", stack="eager") for device in ("cuda:0", "cuda:0,cuda:1")
    )
    assert [str(place) for place, _ in itertools.groupby(two.target.places)] == ["cuda:0", "cuda:1"]
    assert {str(each.device) for each in two.target.model.parameters()} == {"cuda:0", "cuda:1"}
    assert not fusible(two.target.model) and two.stack == "eager" and two.device == "cuda:0"
    assert two.provenance["target"]["devices"] == ["cuda:0", "cuda:1"] and "devices" not in one.provenance["target"]
    for key in ("parameters", "weight_bytes"):
        assert two.provenance["target"][key] == one.provenance["target"][key]
    prompt = [1 + 7 * place % (one.target.vocabulary - 1) for place in range(40)]
    for method in (*METHODS, "hf"):
        options: dict[str, Any] = {"method": method, "max_new_tokens": 48, "stop": "never"}
        options |= {} if method in ("adaptive", "hf") else {"shape": SHAPE}
        ours, theirs = generate(two, prompt, **options), generate(one, prompt, **options)
        assert ours.ids == theirs.ids, method
        assert method == "adaptive" or [c.accepted for c in ours.cycles] == [c.accepted for c in theirs.cycles]
    assert check(two, prompt, ours.ids).ok
    batch = [prompt, prompt[:9], prompt[3:20]]
    assert [each.ids for each in generate(two, batch, shape=SHAPE, max_new_tokens=16, stop="never")] == [
        each.ids for each in generate(one, batch, shape=SHAPE, max_new_tokens=16, stop="never")
    ]


@pytest.mark.gpu
@two_cards
def test_a_target_that_the_first_card_does_not_hold_is_split_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "BESIDE_WEIGHTS", 1000)
    monkeypatch.setattr(devices, "free_bytes", lambda card: 3_000_000)
    pair = load_pair("tiny", dtype="float32")
    assert {str(each.device) for each in pair.target.model.parameters()} == {"cuda:0", "cuda:1"}
    assert pair.stack == "eager" and generate(pair, PROMPT, max_new_tokens=8, stop="never", shape=SHAPE).ids


def test_a_folder_is_not_needed_for_the_map(target_folder: Path) -> None:
    """The map is made from the config alone, before a weight is read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        models: Any = AutoModelForCausalLM
        skeleton = models.from_config(AutoConfig.from_pretrained(target_folder))
    skeleton.tie_weights()
    found = device_map(skeleton, [HERE, THERE])
    assert found == device_map(tiny_target(), [HERE, THERE])
