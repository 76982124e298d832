"""The article's claims beside a run: article.py reads them, numbers.py and directions.py find what a run says of them,
verdicts.py compares, marks.py checks the numbers that a text marks.
"""

from __future__ import annotations

from eagle_repro.measure.claims.article import Claim, load_claims
from eagle_repro.measure.claims.run import Found, NotMeasured, Run, read_run
from eagle_repro.measure.claims.verdicts import Result, check, counts

__all__ = ["Claim", "Found", "NotMeasured", "Result", "Run", "check", "counts", "load_claims", "read_run"]
