"""Numbers as a language writes them: 1,234.5 in English, 1 234,5 (with no-break spaces) in Russian."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "—"
MINUS = "−"
NO_BREAK = "\u00a0"
#: Decimals of each unit of a claim, and what is written after the number.
DIGITS = {"ms": 1, "x": 2, "tau": 2, "%": 1, "M": 0, "tokens": 0, "logits": 2, "per_thousand": 1, "count": 0,
          "share": 2, "steps": 2}  # fmt: skip
UNITS = {
    "en": {"ms": f"{NO_BREAK}ms", "x": "x", "%": "%", "M": f"{NO_BREAK}M", "per_thousand": "‰"},
    "ru": {"ms": f"{NO_BREAK}мс", "x": "x", "%": f"{NO_BREAK}%", "M": f"{NO_BREAK}млн", "per_thousand": f"{NO_BREAK}‰"},
}
POINT, THOUSANDS = {"en": ".", "ru": ","}, {"en": ",", "ru": NO_BREAK}


def number(value: float | None, digits: int, lang: str, *, sign: bool = False) -> str:
    """A number with so many decimals; UNKNOWN for None and NaN; with `sign` a plus before what is not negative."""
    if value is None or value != value:
        return UNKNOWN
    rounded = f"{abs(value):,.{digits}f}"
    negative = value < 0 and any(digit in "123456789" for digit in rounded)
    text = rounded.replace(",", "\0").replace(".", POINT[lang]).replace("\0", THOUSANDS[lang])
    return (MINUS if negative else "+" if sign else "") + text


def quantity(value: float | None, unit: str, lang: str, *, digits: int | None = None, sign: bool = False) -> str:
    """A number with its unit, at the decimals that the unit usually has."""
    text = number(value, digits_for(value, unit) if digits is None else digits, lang, sign=sign)
    return text if text == UNKNOWN else text + UNITS[lang].get(unit, "")


def interval(low: float | None, high: float | None, digits: int, lang: str) -> str:
    """An interval in brackets; UNKNOWN where one question alone gives none."""
    if low is None or high is None or low != low or high != high:
        return UNKNOWN
    separator = f",{NO_BREAK}" if lang == "en" else f";{NO_BREAK}"
    return f"[{number(low, digits, lang)}{separator}{number(high, digits, lang)}]"


def several(values: Sequence[float], unit: str, lang: str) -> str:
    """One number with its unit, or several in a row."""
    return (", " if lang == "en" else "; ").join(quantity(value, unit, lang) for value in values)


def as_stated(values: Sequence[float], unit: str, lang: str, *, is_range: bool = False) -> str:
    """Numbers as they were given: with their own decimals, those of a range or row alike."""
    digits = max(len(repr(value).partition(".")[2]) if isinstance(value, float) else 0 for value in values)
    texts = [number(value, digits, lang) for value in values]
    joined = "–".join(texts) if is_range and values[0] >= 0 else f" {'to' if lang == 'en' else '…'} ".join(texts)
    if not is_range:
        joined = (", " if lang == "en" else "; ").join(texts)
    return joined + UNITS[lang].get(unit, "")


def digits_for(value: float | None, unit: str) -> int:
    """Decimals of a unit, fewer for what is large in it and more for what is small."""
    size = 0.0 if value is None or value != value else abs(value)
    if unit in ("ms", "M"):
        return 0 if size >= 1000 else 1 if size >= 1 else 2
    if unit == "x":
        return 0 if size >= 100 else 1 if size >= 10 else 2
    return DIGITS[unit]


def percent_digits(value: float | None) -> int:
    """Decimals of a percentage in a sentence: none from 10% on, more for less."""
    size = abs(value or 0.0)
    return 0 if size >= 10 or size == 0 else 1 if size >= 1 else 2
