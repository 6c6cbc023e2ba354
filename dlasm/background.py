"""Work that goes on in a thread while something else is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["in_background", "one_ahead"]

_Item = TypeVar("_Item")


def in_background(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Call a function in a thread of its own."""
    executor = ThreadPoolExecutor(1)
    started = executor.submit(function, *args, **kwargs)
    executor.shutdown(wait=False)
    return started


def one_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Make the next item in a thread while one is used."""
    with ThreadPoolExecutor(1) as maker:
        following = maker.submit(next, items, None)
        while (item := following.result()) is not None:
            following = maker.submit(next, items, None)
            yield item
