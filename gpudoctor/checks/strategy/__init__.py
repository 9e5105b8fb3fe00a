"""strategy.*: does each parallel strategy train here what one rank alone trains?"""

CHECKS = {
    "strategy.ddp": ("full", "DistributedDataParallel trains what one rank alone trains"),
    "strategy.dp": ("full", "DataParallel trains what one GPU alone trains"),
    "strategy.zero1": ("full", "ZeroRedundancyOptimizer trains as one rank does, and divides the optimizer's state"),
    "strategy.fsdp": (
        "full",
        "Fully sharded training (fully_shard) trains as one rank does, with 1/n of the weights on each",
    ),
    "strategy.fsdp1": (
        "full",
        "FullyShardedDataParallel (FSDP1) trains as one rank does, with 1/n of the weights on each",
    ),
    "strategy.checkpointing": ("full", "Activation checkpointing changes memory and time, not loss or gradients"),
    "strategy.tensor": ("full", "Tensor parallelism trains what one rank alone trains"),
    "strategy.pipeline": (
        "full",
        "Pipeline parallelism trains what one rank alone trains, with the bubble that it must have",
    ),
    "strategy.3d": ("full", "Data, tensor and pipeline parallelism together train what one rank alone trains"),
    "strategy.deepspeed": ("full", "DeepSpeed's ZeRO 1, 2 and 3 train what one rank alone trains"),
    "strategy.tensorflow": ("full", "TensorFlow's mirrored strategies train what one device alone trains"),
}
