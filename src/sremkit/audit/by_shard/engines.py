"""Who works on the shards: this process, one after another, or the workers of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sremkit.audit.by_shard.plan import Plan
from sremkit.errors import UserError
from sremkit.extras import require

Work = Callable[[Plan, int], None]
Engine = Callable[[Work, Plan, Sequence[int]], Iterator[int]]
WAITING = 4  # tasks handed over for each core, so that none runs dry


def plain(work: Work, plan: Plan, numbers: Sequence[int]) -> Iterator[int]:
    """Do the work on these shards here; yields the number of each when it is done."""
    for number in numbers:
        work(plan, number)
        yield number


def with_ray(work: Work, plan: Plan, numbers: Sequence[int]) -> Iterator[int]:
    """Do the work as Ray tasks of one core each, on the cluster that RAY_ADDRESS names or on this machine.

    Only shard numbers travel: workers read and write the same folders, so all machines must see them. A task whose
    machine dies is done again elsewhere.
    """
    ray = require("ray", extra="scale", purpose="spread the work over a Ray cluster")
    started = not ray.is_initialized()
    if started:
        _connect(ray, plan.workers)
    try:
        yield from _tasks(ray, work, plan, numbers)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, workers: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
    else:  # a cluster of this machine alone, that nobody else can reach
        local = {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        ray.init(num_cpus=workers or None, log_to_driver=False, logging_level="error", **local)


def _tasks(ray: Any, work: Work, plan: Plan, numbers: Sequence[int]) -> Iterator[int]:
    task = ray.remote(num_cpus=1)(work)
    handed = ray.put(replace(plan, workers=0))  # a task has one core: it starts no processes of its own
    most = WAITING * max(int(ray.cluster_resources().get("CPU", 1)), 1)
    left = list(reversed(numbers))
    number_of: dict[Any, int] = {}
    try:
        while left or number_of:
            while left and len(number_of) < most:
                number = left.pop()
                number_of[task.remote(handed, number)] = number
            (done,), _ = ray.wait(list(number_of), num_returns=1)
            number = number_of.pop(done)
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as failure:
                if isinstance(failure.cause, UserError):
                    raise failure.cause from None
                raise
            yield number
    finally:
        for unfinished in number_of:
            ray.cancel(unfinished)


ENGINES: dict[str, Engine] = {"plain": plain, "ray": with_ray}
