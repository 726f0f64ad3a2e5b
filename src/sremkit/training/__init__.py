"""The training loop: steps, schedule, checkpoints, metrics and reporters. It runs a method and never names one."""
