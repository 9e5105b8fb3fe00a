"""Read bandwidth of a path: as many readers as a data loader has workers, bypassing the page cache."""
