"""nvlink.*: NVLinks between GPUs and the NVSwitch fabric, from facts only."""
