"""nvlink.*: links between GPUs and the NVSwitch fabric, from facts."""
