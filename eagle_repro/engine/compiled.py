"""Functions that torch.compile may make into fewer kernels, and where it does.

A function is marked once, where it is written. Inside `compiling()` a call runs its compiled form, everywhere else the
function itself. What changes from call to call (rows, tokens, cache slots that are read) is compiled as a variable, so
that a function is compiled twice or so for a model and not once a length. Where torch.compile does not find the fast
form, fused.py and cycle.py ask whether compiled() and take one of the kernels in kernels/.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
#: Of one function, before torch gives up on it: sizes of models, one token or several, one row or several. Beyond it
#: torch raises, for these functions are compiled whole or not at all.
FORMS = 64
#: A few launch settings of each kernel are tried at its first call. More of a search takes minutes.
OPTIONS = {"max_autotune_pointwise": True}
_inside: ContextVar[bool] = ContextVar("inside compiling()", default=False)


class Compilable(Generic[P, R]):
    """A function of tensors; axes: by name of an argument, the axes whose size changes from call to call."""

    def __init__(self, plain: Callable[P, R], axes: dict[str, tuple[int, ...]]) -> None:
        self.plain, self.__doc__ = plain, plain.__doc__
        names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
        self.axes = [(names.index(name), sizes) for name, sizes in axes.items()]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not compiled():
            return self.plain(*args, **kwargs)
        from torch._dynamo.exc import TorchDynamoException  # slow to load, and only needed here

        given: list[Any] = [regular(each) if isinstance(each, Tensor) else each for each in args]
        for place, sizes in self.axes:
            if isinstance(given[place], Tensor):  # where an axis has size 1, torch compiles for just that
                torch._dynamo.maybe_mark_dynamic(given[place], sizes)
        try:
            return self.form(*given, **kwargs)
        except TorchDynamoException as error:  # whatever goes wrong while torch makes code
            raise cannot("torch.compile", self.plain.__name__, error) from error

    @cached_property
    def form(self) -> Callable[P, R]:
        """The compiled form; torch compiles it at its first call of a kind."""
        form: Any = torch.compile(self.plain, fullgraph=True, dynamic=False, options=dict(OPTIONS))
        return form


def compilable(**axes: tuple[int, ...]) -> Callable[[Callable[P, R]], Compilable[P, R]]:
    """Mark a function; it is called with these arguments by position."""
    return lambda plain: Compilable(plain, axes)


def cannot(compiler: str, name: str, error: Exception) -> RuntimeError:
    """What to raise where a compiler fails: its many lines in one."""
    reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
    return RuntimeError(f'{compiler} cannot make code of {name} here ({reason}): use stack="graph"')


def regular(x: Tensor) -> Tensor:
    """x with the strides that go with its shape, if it is contiguous: those of an axis of size 1 may be any, and torch
    would compile anew for each."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()) if x.is_contiguous() else x


def compiled() -> bool:
    """Whether this is inside `compiling()`."""
    return _inside.get()


@contextmanager
def compiling() -> Iterator[None]:
    """Run the compiled forms inside the block, in this thread."""
    token = _inside.set(True)
    try:
        with torch._dynamo.config.patch(recompile_limit=FORMS):
            yield
    finally:
        _inside.reset(token)


def missing() -> str | None:
    """What torch.compile lacks here to make code for a GPU, None if nothing."""
    if importlib.util.find_spec("triton") is None:
        return "Triton (pip install triton)"
    if not (os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang", "cc")))):
        return "a C compiler (gcc), which Triton starts its kernels with"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's header files (python3-dev), which Triton starts its kernels with"
    return None
