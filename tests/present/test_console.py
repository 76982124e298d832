"""Tables that only the command line prints."""

from __future__ import annotations

from typing import Any

from eagle_repro.present import console


def written(**changed: Any) -> dict[str, Any]:
    row = {"method": "eagle", "tokens": 100, "stop_reason": "budget", "tau": 3.0, "capture_s": 0.0, "prefill_s": 0.1}
    return row | {"decode_s": 1.0, "tokens_per_s": 99.0, "identical": True} | changed


def test_a_head_that_the_target_accepts_nothing_of_is_warned_of() -> None:
    assert "tau is" not in console.texts([written()]).text()
    assert (
        "tau is 1.01, below 1.05" in console.texts(iter([written(method="plain", tau=None), written(tau=1.01)])).text()
    )
    assert "tau is" not in console.texts([written(tau=1.0, tokens=5)]).text(), "too few tokens to say so"
    assert "tau is" not in console.texts([written(tau=1.0, method="adaptive")]).text(), "it takes plain steps then"


def test_what_making_ready_took_is_told_where_it_took_anything() -> None:
    assert "made ready" not in console.texts([written()]).text()
    assert "made ready" in console.texts([written(), written(method="adaptive", capture_s=4.9)]).text()
