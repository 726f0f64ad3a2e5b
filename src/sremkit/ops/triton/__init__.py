"""Triton backends of the ops."""
