"""Minus the sum over images: the gradient by words that every image was compared with."""

from __future__ import annotations

from torch import Tensor

from sremkit.kernels.language import jit, tl


def minus_sum_over_images(values: Tensor, out: Tensor) -> None:
    """Writes minus the sum of `values` (n, W, d) over the images to `out` (W, d)."""
    columns = out.numel()
    add_images[(-(-columns // 1024),)](
        values, out, columns, IMAGES=len(values), ROWS=4, COLUMNS=1024, num_warps=4, num_stages=3
    )


@jit
def add_images(values, out, num_columns, IMAGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Minus the sum over images, COLUMNS numbers a program."""
    # The number of columns is specialised: only when it is known to be a multiple of 16 are loads wide.
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < num_columns
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)  # added up over its rows once, at the end
    for start in range(0, IMAGES, ROWS):
        image = start + tl.arange(0, ROWS)
        x = tl.load(
            values + image[:, None].to(tl.int64) * num_columns + column[None, :],
            mask=(image < IMAGES)[:, None] & inside[None, :],
            other=0.0,
        )
        total += x.to(tl.float32)
    tl.store(out + column, -tl.sum(total, axis=0).to(out.dtype.element_ty), mask=inside)
