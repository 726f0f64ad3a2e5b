"""Training methods, one file each: how a loss is computed from a batch, and what happens between epochs."""

from sremkit.methods.base import METHODS, Forward, Method, Pairing, TrainingContext, WarmupStatus, build_method

__all__ = ["METHODS", "Forward", "Method", "Pairing", "TrainingContext", "WarmupStatus", "build_method"]
