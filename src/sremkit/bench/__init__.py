"""What `srem bench` runs: comparisons of methods, ablation, cost of an epoch, figures, published numbers."""
