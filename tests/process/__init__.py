"""How our own processes are started."""
