"""Compiles every kernel for an H200 without one, and prints the shared memory of each: a JSON object.

A program of its own: Triton either interprets or compiles, for the whole process.
"""

from __future__ import annotations

import json

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sremkit.ops.triton import (
    cross_attention,
    graph_step,
    gru,
    memory_update,
    node_pooling,
    node_projection,
    triton_utils,
)

NUMBERS = {
    "num_words", "num_texts", "num_regions", "num_nodes", "num_queries", "sim_dim", "max_nodes", "first_word",
    "num_here", "upstream_stride", "out_stride", "step", "num_steps", "num_items", "hidden",
    "num_rows", "num_columns", "num_lines", "num_images", "width", "num_contexts",
}  # fmt: skip
ALWAYS_FLOAT32 = {"inverse", "sums", "gram", "weights", "by_weights", "bias", "by_bias"}


def shared_memory(kernel, dtype: str, constants: dict, *, num_warps: int, num_stages: int, float32=()) -> int:
    """Bytes of shared memory that the compiled kernel takes."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in NUMBERS:
            return "i32"
        if name in ("epsilon", "scale"):
            return "fp32"
        special = {"cu_seqlens": "*i32", "lengths": "*i32", "order": "*i32", "region_mask": "*u8"}
        return special.get(name, "*fp32" if name in ALWAYS_FLOAT32 | set(float32) else f"*{dtype}")

    signature = {name: kind(name) for name in kernel.arg_names}
    aligned = [
        k
        for k, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in ("sim_dim", "hidden", "width", "num_columns")
    ]
    source = ASTSource(kernel, signature, constants, {(k,): [["tt.divisibility", 16]] for k in aligned})
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared


def main() -> None:
    found: dict[str, int] = {}
    for dtype, size, precision in (("bf16", 2, "ieee"), ("fp32", 4, "tf32x3")):
        sizes = {"REGIONS": 64, "SIM": 256, "WIDTH": 1024, "PRECISION": precision}
        for kernel, choices in (
            (node_projection.project, node_projection.FORWARD),
            (node_projection.project_back, node_projection.BACKWARD),
        ):
            blocks = dict(choices[size])
            schedule = {key: blocks.pop(key) for key in ("num_warps", "num_stages")}
            found[f"{kernel.__name__} {dtype}"] = shared_memory(kernel, dtype, {**sizes, **blocks}, **schedule)
        found[f"add_images {dtype}"] = shared_memory(
            node_projection.add_images, dtype, {"IMAGES": 128, "ROWS": 4, "COLUMNS": 1024},
            num_warps=4, num_stages=3,
        )  # fmt: skip
        for first in (False, True):
            constants = {
                "MEMORY_SHARED": first, "PROJECTED_SHARED": first, "CONTEXTS": 64, "PRECISION": precision,
                "QUERIES": memory_update._QUERIES, "COLUMNS": memory_update._COLUMNS,
            }  # fmt: skip
            for kernel in (memory_update.update_forward, memory_update.update_backward):
                found[f"{kernel.__name__} {dtype} {first}"] = shared_memory(
                    kernel, dtype, constants, num_warps=memory_update._WARPS, num_stages=1
                )
        for nodes in (32, 128 if size == 2 else 64):
            graph = {
                "ONLY_GLOBAL": False,
                "SHORT": nodes // 2,
                "NODES": nodes,
                "SIM": 256,
                "PRECISION": precision,
            }
            graph["BLOCK_S"] = graph_step._columns(nodes, size)
            schedule = graph_step._schedule(nodes, size)
            for kernel in (graph_step.attend, graph_step.attend_back):
                name = f"{kernel.__name__} {dtype} {nodes}"
                found[name] = shared_memory(kernel, dtype, graph, **schedule)
        for kernel in (node_pooling.sum_forward, node_pooling.sum_backward):
            found[f"{kernel.__name__} {dtype}"] = shared_memory(
                kernel, dtype, {"ROWS": node_pooling._SUM_ROWS, "SIM": 256},
                num_warps=node_pooling._WARPS, num_stages=1,
                float32=("out", "upstream"),
            )  # fmt: skip
        for kernel, constants in (
            (node_pooling.score_forward, {"ROWS": node_pooling._SCORE_ROWS}),
            (
                node_pooling.score_backward,
                {"HAS_UPSTREAM": True, "IMAGES": node_pooling._IMAGES, "ROWS": node_pooling._SCORE_ROWS_BACK},
            ),
        ):
            found[f"{kernel.__name__} {dtype}"] = shared_memory(
                kernel, dtype, {**constants, "SIM": 256},
                num_warps=node_pooling._WARPS, num_stages=1, float32=("out", "weight", "by_scores", "by_weight"),
            )  # fmt: skip
        constants = {
            "ROWS": graph_step._ROWS,
            "ROWS_A_PROGRAM": graph_step._ROWS_A_PROGRAM,
            "WIDTH": 256,
        }
        found[f"gate_and_sum {dtype}"] = shared_memory(
            graph_step.gate_and_sum, dtype, constants, num_warps=4, num_stages=1, float32=("parts",)
        )
        for kernel, num_warps in (
            (cross_attention.attend_regions, cross_attention._WARPS),
            (cross_attention.attend_regions_back, cross_attention._WARPS_BACK),
        ):
            constants = {"REGIONS": 64, "SHORT": 16, "WORDS": 32}
            if kernel is cross_attention.attend_regions:
                constants["PRECISION"] = "tf32" if size == 2 else precision
            found[f"{kernel.__name__} {dtype}"] = shared_memory(
                kernel, dtype, constants, num_warps=num_warps, num_stages=1
            )
        kept = ("states", "out", "gates", "carry", "upstream")
        for kernel, cut, more in (
            (gru.gru_forward, gru.FORWARD, {"KEEP": True, "HIDDEN": 1024}),
            (gru.gru_backward, gru.BACKWARD, {"WIDE": 3072}),
        ):
            blocks = dict(cut[size])
            schedule = {key: blocks.pop(key) for key in ("num_warps", "num_stages")}
            constants = {"SIDES": 2, "PRECISION": precision, **blocks, **more}
            found[f"{kernel.__name__} {dtype}"] = shared_memory(kernel, dtype, constants, **schedule, float32=kept)
        found[f"zero_rows {dtype}"] = shared_memory(
            triton_utils.zero_rows, dtype, {"ROWS": 32, "WIDTH": 256}, num_warps=4, num_stages=1
        )
        found[f"zero_columns {dtype}"] = shared_memory(
            triton_utils.zero_columns, dtype, {"LINES": 64, "COLUMNS": 16}, num_warps=4, num_stages=1
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
