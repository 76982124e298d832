"""Triton kernels of the stack "compiled".

Each does in one kernel what functions of fused.py, attention.py and cycle.py do in several. Imported where that stack
runs and nowhere else: Triton comes with a CUDA build of torch and with no other.
"""

from eagle_repro.engine.kernels.attention import attend
from eagle_repro.engine.kernels.product import product
from eagle_repro.engine.kernels.search import likeliest
from eagle_repro.engine.kernels.turned import turned

__all__ = ["attend", "likeliest", "product", "turned"]
