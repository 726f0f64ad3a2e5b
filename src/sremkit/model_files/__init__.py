"""Models as files for others: folders of safetensors with a model card, ONNX, and published checkpoints."""

from sremkit.model_files.folder import load_model, save_model
from sremkit.model_files.published import load_published

__all__ = ["load_model", "load_published", "save_model"]
