"""What feeds the GPUs: a real torch DataLoader over the files of a data set."""
