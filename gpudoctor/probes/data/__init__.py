"""Input pipeline: a real torch DataLoader over the files of a data set."""
