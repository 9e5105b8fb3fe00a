"""What the checks of measurements share: how a probe ended, its ranks and pairs of GPUs, and why a GPU is slow."""
