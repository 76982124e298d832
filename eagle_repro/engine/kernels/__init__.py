"""Triton kernels of the stack "compiled".

Each does in one kernel what functions of fused.py, attention.py and cycle.py do in several. Imported where that stack
runs and nowhere else: Triton comes with a CUDA build of torch and with no other.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from triton.errors import TritonError

from eagle_repro.engine.compiled import cannot
from eagle_repro.engine.kernels import attention, search
from eagle_repro.engine.kernels import product as products
from eagle_repro.engine.kernels import turned as rotation

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["attend", "likeliest", "product", "turned"]


def _told(kernel: Callable[P, R]) -> Callable[P, R]:
    """The kernel; whatever Triton lacks here (shared memory, an assembler) is one line that names another stack."""

    @wraps(kernel)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return kernel(*args, **kwargs)
        except TritonError as error:
            raise cannot("Triton", kernel.__name__, error) from error

    return called


attend = _told(attention.attend)
likeliest = _told(search.likeliest)
product = _told(products.product)
turned = _told(rotation.turned)
