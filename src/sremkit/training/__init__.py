"""The loop, checkpoints and run records. Runs a method, never names one."""
