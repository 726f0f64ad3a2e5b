"""How the steps of a run are executed: what "auto" stands for, and the way back to eager training if it fails.

    setting                  auto, on a CUDA device                                            elsewhere
    training.precision       bf16 from compute capability 8.0 on, else float32                 float32
    training.compile         the regions around the kernels (SAF, SGR, SGRAF), in long runs    false
    training.cuda_graphs     where model, method and settings support them                     false

With `training.deterministic=true` "auto" is float32, false and false. A value other than "auto" is used as given, and
is an error where it cannot be. A step that cannot be captured or compiled under "auto" is repeated eagerly, from the
state before it, and so are all that follow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from sremkit import ops
from sremkit.config.recipes import Auto, Precision, TrainingSettings
from sremkit.errors import UserError
from sremkit.io import first_line
from sremkit.methods import Method
from sremkit.models.matcher import Matcher
from sremkit.models.regional_compile import parts_around_kernels
from sremkit.training.cuda_graphs import uses_cuda_graphs

R = TypeVar("R")

BF16_CAPABILITY = (8, 0)  # the first one with matrix products in bf16
MIN_STEPS_TO_COMPILE = 10_000  # of a run; a shorter one does not gain the time that compiling takes


def resolve_precision(precision: Precision | Auto, device: torch.device, *, deterministic: bool = False) -> Precision:
    """The precision that "auto" stands for on this device."""
    if precision != "auto":
        return precision
    if deterministic or device.type != "cuda":
        return "float32"
    return "bf16" if torch.cuda.get_device_capability(device) >= BF16_CAPABILITY else "float32"


def resolve_execution(
    settings: TrainingSettings,
    matcher: Matcher,
    method: Method,
    process: tuple[int, int],
    device: torch.device,
    *,
    num_steps: int,
) -> TrainingSettings:
    """The settings without "auto".

    Args:
        process: rank and number of processes.
        num_steps: of the whole run.
    """
    precision = resolve_precision(settings.precision, device, deterministic=settings.deterministic)
    compiled = settings.compile
    if compiled == "auto":
        compiled = _can_compile_regions(settings, matcher, process, device) and num_steps >= MIN_STEPS_TO_COMPILE
    resolved = replace(settings, precision=precision, compile=compiled)
    graphs = settings.cuda_graphs
    if graphs == "auto":
        graphs = _supports_cuda_graphs(resolved, matcher, method, process, device)
    return replace(resolved, cuda_graphs=graphs)


def describe_execution(given: TrainingSettings, resolved: TrainingSettings, device: torch.device) -> str:
    """One line about what "auto" was resolved to on a CUDA device; empty elsewhere, or where nothing is "auto"."""
    if device.type != "cuda" or "auto" not in (given.precision, given.compile, given.cuda_graphs):
        return ""
    precision = str(resolved.precision)
    if precision == "bf16" and resolved.float32_steps:
        precision = f"bf16 after {resolved.float32_steps} steps in float32"
    parts = [precision, "CUDA graphs" if resolved.cuda_graphs else "no CUDA graphs"]
    parts.append("compiled" if resolved.compile else "not compiled")
    exact = "" if given.deterministic else "; training.deterministic=true for the slow exact way"
    return f"training steps on this GPU: {', '.join(parts)}{exact}"


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Inside, PyTorch uses deterministic algorithms, if enabled; an operation that has none warns."""
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it is first used
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def run_or_repeat(
    step: Callable[[], R], matcher: Matcher, method: Method, device: torch.device, fall_back: Callable[[str], None]
) -> R:
    """The result of `step`; if it fails, it is repeated after `fall_back`, from the state before it.

    A step changes weights in its last operation, so these are as before if it fails. Buffers, the state of the method
    and the generators are restored. If the step fails again, the failure is not that of compiling, and is raised.

    Args:
        fall_back: makes the step eager, and reports the reason that it is given.
    """
    buffers = {name: buffer.detach().clone() for name, buffer in matcher.named_buffers()}
    state = {name: t.detach().clone() for name, t in method.state_dict().items()}
    generators = _generator_states(device)
    try:
        return step()
    except UserError:
        raise
    except Exception as problem:
        with torch.no_grad():
            for name, buffer in matcher.named_buffers():
                buffer.copy_(buffers[name])
        method.load_state_dict(state)
        _restore_generators(generators, device)
        fall_back(first_line(problem))
        return step()


def _can_compile_regions(
    settings: TrainingSettings, matcher: Matcher, process: tuple[int, int], device: torch.device
) -> bool:
    if device.type != "cuda" or settings.deterministic:
        return False
    if process[1] > 1 or settings.grad_cache_chunk_size is not None:
        return False
    return ops.backend != "plain" and ops.has_triton() and bool(parts_around_kernels(matcher))


def _supports_cuda_graphs(
    settings: TrainingSettings, matcher: Matcher, method: Method, process: tuple[int, int], device: torch.device
) -> bool:
    if device.type != "cuda" or settings.deterministic:
        return False
    try:
        return uses_cuda_graphs(replace(settings, cuda_graphs=True), matcher, method, process, device)
    except UserError:
        return False


def _generator_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _restore_generators(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
