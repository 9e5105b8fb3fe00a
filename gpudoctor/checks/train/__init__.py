"""train.*: results of a short DDP training."""

CHECKS = {
    "train.sync": ("standard", "After a short DDP train all ranks agree, and the loss fell"),
    "train.balance": ("standard", "No rank is slower than the others"),
    "train.memory": ("standard", "Every rank uses the same amount of GPU memory"),
    "train.scaling": ("standard", "All GPUs together are worth nearly their number"),
    "train.bucket": ("full", "Whether the size of DDP's gradient buckets matters here"),
    "train.utilization": ("standard", "Every GPU is as busy as the others during the train"),
}
